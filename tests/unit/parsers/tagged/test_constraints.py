"""Replies are held to the calls that a format's grammar allows, and may be plain text."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.parsers.tagged.test_grammars import NAMES, TOOLS
from tests.unit.parsers.tagged.written import Writer
from tests.unit.structured.texts import follows, trial, vocabulary

from quire.parsers.call_rules import CallRules, OfferedTool
from quire.parsers.constraint import reply_constraint
from quire.parsers.format import ReplyFormat
from quire.parsers.registry import REASONING_FORMATS, TOOL_FORMATS, reply_format
from quire.structured.source import grammar_of

OFFERED = [OfferedTool(name, schema) for name, schema in TOOLS.items()]
REASONING = {"openai": "openai_gptoss", "muse_glimmer": "muse_glimmer", "kimi_k3": "kimi_k3"}


def format_of(name: str) -> ReplyFormat:
    return reply_format(REASONING_FORMATS.get(REASONING.get(name, "")), TOOL_FORMATS[name]())


def grammar(name: str, choice: Any) -> str:
    check = trial().checked
    wanted = reply_constraint(format_of(name), CallRules(OFFERED, choice), check)
    assert wanted is not None
    return grammar_of(check(wanted), vocabulary().added)


@pytest.mark.parametrize("name", NAMES)
def test_calls_and_plain_text(name: str) -> None:
    part = TOOL_FORMATS[name]().grammar(TOOLS, is_parallel=True)
    other = TOOL_FORMATS[name]().grammar({"find": TOOLS["search"]}, is_parallel=False)
    auto, required = grammar(name, "auto"), grammar(name, "required")
    for seed in range(4):
        text = Writer(seed).text(part)
        assert follows(auto, text), text
        assert follows(required, text), text
    text = Writer(1).text(other)
    assert not follows(auto, text), text
    assert not follows(required, text), text
    words = "Hello <b>, {there}\n"
    assert follows(auto, words if name != "openai" else f"<|channel|>final<|message|>{words}")
    assert not follows(required, "Hello")


def test_messages_of_gpt_oss() -> None:
    held = grammar("openai", "auto")
    text = "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>"
    assert follows(held, f"{text}final<|message|>hi")
    assert follows(held, f"{text}commentary to=functions.stop <|constrain|>json<|message|>{{}}")
    assert not follows(held, "to=functions.stop<|channel|>commentary<|message|>{}")
