"""What a format's grammar allows can be read, and gives the values that were written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.parsers.tagged.written import Writer, leaves
from tests.unit.structured.texts import checked_grammar, follows

from quire.parsers.parser import parse_whole
from quire.parsers.registry import TOOL_FORMATS, reply_format

TOOLS: dict[str, dict[str, Any]] = {
    "search": {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": "integer"},
            "in": {"enum": ["title", "body"]},
            "exact": {"type": "boolean"},
            "weights": {"type": "array", "items": {"type": "number"}},
            "tags": {"type": "array", "items": {"type": "string"}},
            "since": {"$ref": "#/$defs/Date"},
            "note": {"type": "string"},
        },
        "required": ["query", "in"],
        "$defs": {
            "Date": {
                "type": "object",
                "properties": {"year": {"type": "integer"}, "zone": {"type": "string"}},
                "required": ["year", "zone"],
                "additionalProperties": False,
            }
        },
        "additionalProperties": False,
    },
    "say": {"type": "object", "properties": {"text": {"type": "string"}}},
    "stop": {"type": "object", "properties": {}, "additionalProperties": False},
}

TRIMMED = ("dots", "step3", "minicpm5")
NAMES = [
    "deepseek_v32", "deepseek_v4", "deepseek_v41", "dots", "functiongemma", "gemma4", "glm45",
    "glm47", "hy_v3", "hy_v4", "inkling", "k2_horizon", "kimi_k3", "lfm2", "llama4_pythonic",
    "mimo", "minicpm5", "minimax_m2", "minimax_m3", "muse_glimmer", "olmo3", "openai", "plamo3",
    "poolside_v1", "pythonic", "qwen3_coder", "seed_oss", "step3",
]  # fmt: skip


@pytest.mark.parametrize("is_parallel", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_texts_that_a_grammar_allows_are_read(name: str, is_parallel: bool) -> None:
    format = TOOL_FORMATS[name]()
    part = format.grammar(TOOLS, is_parallel=is_parallel)
    tag = json.dumps({"type": "structural_tag", "format": part})
    grammar = checked_grammar(structural_tag=tag)
    for seed in range(40):
        writer = Writer(seed)
        text = writer.text(part)
        assert follows(grammar, text), text
        message = parse_whole(reply_format(None, format), text, TOOLS)
        calls = message.tool_calls
        assert calls, text
        assert all(call.is_complete and call.name in TOOLS for call in calls), text
        read = leaves([json.loads(call.arguments) for call in calls])
        written = leaves(writer.values)
        assert not message.content, text
        if name in TRIMMED:
            written = [one.strip(" \t\r\n") if isinstance(one, str) else one for one in written]
            read = [one.strip(" \t\r\n") if isinstance(one, str) else one for one in read]
        assert read == written, text
        assert len(calls) == 1 or is_parallel


@pytest.mark.parametrize("name", NAMES)
def test_tools_without_arguments_can_be_called(name: str) -> None:
    format = TOOL_FORMATS[name]()
    tools: dict[str, dict[str, Any]] = {"now": {}, "stop": TOOLS["stop"]}
    part = format.grammar(tools, is_parallel=False)
    grammar = checked_grammar(structural_tag=json.dumps({"type": "structural_tag", "format": part}))
    for seed in range(10):
        text = Writer(seed).text(part)
        assert follows(grammar, text), text
        (call,) = parse_whole(reply_format(None, format), text, tools).tool_calls
        assert call.is_complete


@pytest.mark.parametrize("name", NAMES)
def test_a_grammar_refuses_other_tools_and_missing_arguments(name: str) -> None:
    format = TOOL_FORMATS[name]()
    part = format.grammar(TOOLS, is_parallel=True)
    grammar = checked_grammar(structural_tag=json.dumps({"type": "structural_tag", "format": part}))
    other = {**TOOLS["search"], "required": [], "properties": {"limit": {"type": "integer"}}}
    for tools in ({"find": TOOLS["search"]}, {"search": other}):
        text = Writer(1).text(format.grammar(tools, is_parallel=False))
        assert not follows(grammar, text), text
