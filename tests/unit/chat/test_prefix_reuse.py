"""`probe_prefix_reuse`: how much of a chat the next turn reuses, by the chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chat_templates import LLAMA3_STYLE, MISTRAL_STYLE, PARTS_STYLE, QWEN3_STYLE
from rendered_here import rendered_here

import quire
from quire.chat.prefix_reuse import PrefixReuse, ReusedPart, probe_prefix_reuse
from quire.chat.templates import ChatTemplates
from quire.errors import RequestError

OPEN_THOUGHT_STYLE = """{{ bos_token }}{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<A>' + message.content.split('</think>')[-1] + eos_token }}
    {%- else %}
        {{- '<' + message.role + '>' + message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<A><think>\\n' }}{% endif %}"""
"""The prompt opens a reasoning block that past replies lose, as in DeepSeek-R1."""
SWITCH_STYLE = """{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<A></think>' + message.content.split('</think>')[-1].lstrip() + '<E>' }}
    {%- else %}
        {{- '<' + message.role + '>' + message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<A><think>' if thinking else '<A></think>' }}{% endif %}"""
"""The switch is called `thinking`, and past replies are as if it had been off (DeepSeek-V3.1)."""
MOVING_SYSTEM_STYLE = """{%- if messages[0].role == 'system' %}
    {%- set system, chat = messages[0].content, messages[1:] %}
{%- else %}
    {%- set system, chat = '', messages %}
{%- endif %}
{%- for message in chat %}
    {%- if message.role == 'user' %}
        {{- '[INST]' + (system if loop.last else '') + message.content + '[/INST]' }}
    {%- else %}
        {{- ' ' + message.content + '</s>' }}
    {%- endif %}
{%- endfor %}"""
"""The system prompt lies before the last question, as in older templates of Mistral."""
NO_SYSTEM_STYLE = """{%- for message in messages %}
    {%- if message.role == 'system' %}{{ raise_exception('no system prompt') }}{% endif %}
    {{- '<' + message.role + '>' + message.content | trim + '<E>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"""
DEMO = (Path(quire.__file__).parent / "demo_model" / "chat_template.jinja").read_text()


def reuse_of(source: str) -> PrefixReuse:
    templates = ChatTemplates({"default": source}, {"bos_token": "<s>", "eos_token": "</s>"})

    def render(messages: list[Any], tools: list[Any] | None, variables: dict[str, Any], /) -> str:
        return rendered_here(templates, messages, tools=tools, chat_template_kwargs=variables)

    return probe_prefix_reuse(render, has_reasoning="think" in source)


@pytest.mark.parametrize(
    ("source", "reused"),
    [
        (DEMO, {"without reasoning": 2, "tool calls": 2, "with reasoning": 2}),
        (QWEN3_STYLE, {"without reasoning": 1, "tool calls": 1, "with reasoning": 1}),
        (OPEN_THOUGHT_STYLE, {"with reasoning": 1}),
        (SWITCH_STYLE, {"without reasoning": 2, "with reasoning": 1}),
        (LLAMA3_STYLE, {"without reasoning": 2, "tool calls": 2}),
        (MISTRAL_STYLE, {"without reasoning": 2}),
        (PARTS_STYLE, {"without reasoning": 2}),
        (MOVING_SYSTEM_STYLE, {"without reasoning": 0}),
        (NO_SYSTEM_STYLE, {"without reasoning": 2}),
    ],
)
def test_what_a_template_keeps(source: str, reused: dict[str, int]) -> None:
    assert reuse_of(source).reused == reused


def test_the_template_of_qwen3_keeps_all_once_its_empty_thought_stays() -> None:
    """The mended rule, so that it is the thought that the probes see and nothing else."""
    empty = "<think>\\n\\n</think>\\n\\n"
    mended = QWEN3_STYLE.replace(
        "{{- '<|im_start|>' + message.role + '\\n' + content }}",
        f"{{{{- '<|im_start|>' + message.role + '\\n{empty}' + content }}}}",
    )
    assert mended != QWEN3_STYLE
    reused = reuse_of(mended).reused
    assert reused["without reasoning"] is reused["tool calls"] is ReusedPart.ALL
    assert reused["with reasoning"] is ReusedPart.PROMPT


def test_it_is_said_in_one_line() -> None:
    assert str(reuse_of(DEMO)) == (
        "begins with the last prompt and its reply: the prefix cache serves both"
    )
    assert str(reuse_of(SWITCH_STYLE)) == (
        "computes the last reply again: the chat template renders past replies differently from "
        "how they were generated (with reasoning)"
    )
    assert "computes earlier turns again" in str(reuse_of(MOVING_SYSTEM_STYLE))


def test_a_template_that_refuses_everything_is_no_error() -> None:
    def refuse(_messages: object, _tools: object, _variables: object, /) -> str:
        raise RequestError("no", parameter="messages")

    assert str(probe_prefix_reuse(refuse, has_reasoning=True)).startswith("unknown")
    assert reuse_of("{{ raise_exception('no') }}").reused == {}
    assert reuse_of("{% if %}").reused == {}
