"""Templates that end calls, switch reasoning on or spell marks in a way of their own."""

from __future__ import annotations

import pytest

from quire.parsers.events import ToolCall
from quire.parsers.parser import parse_whole

from .conftest import Detect
from .templates import chatml

ARGUMENTS = '{"a": 1}'
CALL = ToolCall("f", None, ARGUMENTS, is_complete=True)
NAME, VALUES = "{{ call.function.name }}", "{{ call.function.arguments | tojson }}"
OBJECT = f'{{"name": "{NAME}", "arguments": {VALUES}}}'
WRITTEN = f'{{"name": "f", "arguments": {ARGUMENTS}}}'

EFFORT = """{% set suffix = ':tq' %}{% set effort = reasoning_effort or 'no_think' %}
{%- for m in messages %}<|{{ m.role }}|>
{%- if m.role == 'assistant' %}<think{{ suffix }}>{{ m.reasoning_content or '' -}}
</think{{ suffix }}>{% endif %}{{ m.content }}{% endfor %}
{%- if add_generation_prompt %}<|assistant|><think{{ suffix }}>
{%- if effort == 'no_think' %}</think{{ suffix }}>{% endif %}{% endif %}"""
NEXT_TURN = (
    "{% for m in messages %}<|{{ m.role }}|>{% for call in m.tool_calls or [] %}"
    "{% if loop.first %}<CALLS>{% endif %}<CALL>{{ call.function.name }}<ARGS>"
    "{{ call.function.arguments | tojson }}</CALL>{% if loop.last %}</CALLS><|end|><|assistant|>"
    "{% endif %}{% endfor %}{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_an_effort_alone_switches_reasoning_on(detected: Detect) -> None:
    found = detected(EFFORT)
    tags = found.reply.reasoning
    assert tags is not None
    assert (tags.begin, tags.end) == ("<think:tq>", "</think:tq>")
    assert tags.is_open_in("<|assistant|><think:tq>")
    assert not tags.is_open_in("<|assistant|><think:tq></think:tq>")
    message = parse_whole(found.reply, "why</think:tq>So.", is_reasoning=True)
    assert (message.reasoning, message.content) == ("why", "So.")


def test_the_mark_of_the_next_turn_ends_no_call(detected: Detect) -> None:
    found = detected(NEXT_TURN)
    text = f"Well.<CALLS><CALL>f<ARGS>{ARGUMENTS}</CALL></CALLS>"
    message = parse_whole(found.reply, text, {"f": {}})
    assert (message.content, message.tool_calls) == ("Well.", [CALL])
    assert "assistant" not in str(found.tools)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (  # the end of a call and the beginning of the next one have a first character in common
            f"<f={NAME}>{VALUES}</f>{{% if loop.last %}}<|eom|>{{% endif %}}",
            f"<f=f>{ARGUMENTS}</f><f=f>{ARGUMENTS}</f>",
        ),
        (  # a known format reads one call of these, and not two
            f"{{% if loop.first %}}<tool_calls>\n{{% endif %}}{OBJECT}\n"
            "{% if loop.last %}</tool_calls>{% endif %}",
            f"<tool_calls>\n{WRITTEN}\n{WRITTEN}\n</tool_calls>",
        ),
    ],
)
def test_two_calls_leave_no_mark(detected: Detect, call: str, text: str) -> None:
    template = chatml("").replace("\n\n{%- endfor %}<|im_end|>", f"{call}{{%- endfor %}}<|im_end|>")
    message = parse_whole(detected(template).reply, text, {"f": {}})
    assert (message.content, message.tool_calls) == ("", [CALL, CALL])


def test_marks_around_the_text_before_calls(detected: Detect) -> None:
    call = f'{{"name": "{NAME}", "parameters": {VALUES}}}'
    template = chatml(f"<|python_start|><|python_end|>{call}").replace("\nCALL\n", "CALL")
    found = detected(template)
    assert found.tools is not None
    assert found.tools.name == "llama4_json"
    written = f'{{"name": "f", "parameters": {ARGUMENTS}}}'
    for text in (f"<|python_start|>Well.<|python_end|>{written}", f"Well.{written}"):
        message = parse_whole(found.reply, text, {"f": {}})
        assert (message.content, message.tool_calls) == ("Well.", [CALL])


SOLAR_CALL = "<|tool_call:begin|>{0}<|tool_call:name|>{1}<|tool_call:args|>{2}<|tool_call:end|>"
SOLAR = (
    "{% for m in messages %}{% if m.reasoning %}<|begin|>assistant<|think|>{{ m.reasoning }}<|end|>"
    "{% endif %}{% if m.tool_calls %}<|begin|>assistant<|tool_calls|>"
    "{% for call in m.tool_calls %}"
    + SOLAR_CALL.format("{{ call.id }}", NAME, VALUES)
    + "{% endfor %}<|calls|>{% else %}<|begin|>{{ m.role }}<|content|>{{ m.content }}<|end|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|begin|>assistant{% endif %}"
)


def test_messages_with_a_mark_for_each_kind(detected: Detect) -> None:
    found = detected(SOLAR)
    assert str(found.tools).startswith("solar_open")
    assert str(found.reasoning).startswith("solar_open")
    call = SOLAR_CALL.format("a1b2c3d4e5", "f", ARGUMENTS)
    begin = "<|begin|>assistant"
    text = f"<|think|>why<|end|>{begin}<|content|>So.<|end|>{begin}<|tool_calls|>{call}"
    message = parse_whole(found.reply, text, {"f": {}})
    assert (message.reasoning, message.content) == ("why", "So.")
    assert message.tool_calls == [ToolCall("f", "a1b2c3d4e5", ARGUMENTS, is_complete=True)]
    assert parse_whole(found.reply, "<|content|>So.").content == "So."
