"""Short chat templates that write calls and reasoning as those of known families do."""

from __future__ import annotations

CHATML = """
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content or "" }}
{%- for call in message.tool_calls or [] %}
CALL
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
OPENING
{%- endif %}"""
"""CALL: how a `call` is written; OPENING: what the prompt ends with."""


def chatml(call: str = "", opening: str = "") -> str:
    """A template with reasoning, that writes calls in this way."""
    return CHATML.replace("CALL", call).replace("OPENING", opening)


HERMES = chatml(
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": '
    "{{ call.function.arguments | tojson }}}\n</tool_call>"
)
