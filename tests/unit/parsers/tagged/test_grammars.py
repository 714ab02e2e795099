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


@pytest.mark.sweep(10)
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


NODE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "value": {"type": "integer"},
        "next": {"$ref": "#/$defs/node"},
        "others": {"type": "array", "items": {"$ref": "#/$defs/node"}},
    },
    "required": ["value"],
    "additionalProperties": False,
}
TREE = {"properties": {"root": {"$ref": "#/$defs/node"}}, "required": ["root"]}


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_that_holds_itself(name: str) -> None:
    tools = {"plant": {"type": "object", **TREE, "$defs": {"node": NODE}}}
    part = TOOL_FORMATS[name]().grammar(tools, is_parallel=False)
    checked_grammar(structural_tag=json.dumps({"type": "structural_tag", "format": part}))


def test_values_of_a_schema_that_holds_itself() -> None:
    tools = {"plant": {"type": "object", **TREE, "$defs": {"node": NODE}}}
    part = TOOL_FORMATS["gemma4"]().grammar(tools, is_parallel=False)
    tag = json.dumps({"type": "structural_tag", "format": part})
    grammar = checked_grammar(structural_tag=tag)
    call = "<|tool_call>call:plant{{root:{}}}<tool_call|>"
    assert follows(grammar, call.format("{value:1,next:{value:2,next:{value:3,others:[]}}}"))
    assert follows(grammar, call.format("{value:1,others:[{value:2},{value:3,next:{value:4}}]}"))
    assert not follows(grammar, call.format("{value:1,next:{next:{value:3}}}"))


@pytest.mark.parametrize(
    ("bounds", "good", "bad"),
    [
        ({"minItems": 100}, (100, 130), (0, 1, 99)),
        ({"maxItems": 200}, (0, 1, 200), (201,)),
        ({"minItems": 70, "maxItems": 72}, (70, 71, 72), (69, 73)),
        ({"minItems": 1, "maxItems": 1}, (1,), (0, 2)),
        ({"maxItems": 0}, (0,), (1,)),
    ],
    ids=str,
)
def test_an_array_has_as_many_items_as_its_schema_says(
    bounds: dict[str, int], good: tuple[int, ...], bad: tuple[int, ...]
) -> None:
    counts = {"type": "array", "items": {"type": "integer"}, **bounds}
    add = {"type": "object", "properties": {"counts": counts}, "required": ["counts"]}
    tools = {"add": add}
    part = TOOL_FORMATS["gemma4"]().grammar(tools, is_parallel=False)
    tag = json.dumps({"type": "structural_tag", "format": part})
    grammar = checked_grammar(structural_tag=tag)
    call = "<|tool_call>call:add{{counts:[{}]}}<tool_call|>"
    for count in (*good, *bad):
        assert follows(grammar, call.format(",".join(["1"] * count))) == (count in good), count
