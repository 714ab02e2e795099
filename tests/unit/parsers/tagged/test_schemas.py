"""Arguments that are written one by one follow their schemas, whatever keywords these use."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.parsers.tagged.calls import read
from tests.unit.structured.texts import checked_grammar, follows, trial

from quire.errors import GrammarError
from quire.parsers.call_rules import CallRules, OfferedTool
from quire.parsers.constraint import reply_constraint
from quire.parsers.registry import TOOL_FORMATS, reply_format

COLOR = {"Color": {"enum": ["red", "blue"], "type": "string"}}
SHORT = {"Short": {"type": "string", "minLength": 2, "pattern": "^a"}}
VALUES: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    ({"$ref": "#/$defs/Color"}, {"red": "red"}, {"green": "green"}),
    ({"anyOf": [{"enum": ["none", "all"]}, {"type": "null"}]},
     {"none": "none", "null": None}, {"x": "x", "5": 5}),
    ({"const": "only"}, {"only": "only"}, {"other": "other"}),
    ({"allOf": [{"type": "string"}, {"maxLength": 2}]}, {"ab": "ab", "5": "5"}, {"abc": "abc"}),
    ({"oneOf": [{"const": "x"}, {"const": 7}]}, {"x": "x", "7": 7}, {"y": "y", "8": 8}),
    ({"$ref": "#/$defs/Short"}, {"ab": "ab"}, {"a": "a", "bb": "bb"}),
    ({"type": "string", "format": "date"}, {"2024-02-29": "2024-02-29"}, {"2023-02-29": ""}),
    ({"type": "string", "format": "uuid"}, {}, {"abc": "abc"}),
    ({"enum": ["a", 1, None, "1", True]}, {"a": "a", "1": "1", "null": None, "true": True},
     {"2": 2, "false": False}),
    ({"type": "string", "pattern": "^a|b$"}, {"ax": "ax", "xb": "xb"}, {"xa": "xa"}),
    ({"type": ["string", "integer"]}, {"5": 5, "5a": "5a", "": ""}, {" 5": 5, '"5"': "5"}),
    ({"type": ["string", "boolean", "null"]}, {"true": True, "null": None, "Truth": "Truth"},
     {"True": True, "None": None}),
    ({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]},
     {"[1]": [1], "a[1]": "a[1]"}, {'["x"]': ["x"]}),
    ({"anyOf": [{"type": "integer", "multipleOf": 5}, {"type": "string"}]},
     {"10": 10, "a5": "a5"}, {"7": 7}),
]  # fmt: skip
QWEN = "<tool_call>\n<function=f>\n{}</function>\n</tool_call>"
ARGUMENT = "<parameter={}>\n{}\n</parameter>\n"


def held(schema: dict[str, Any], name: str = "qwen3_coder") -> str:
    part = TOOL_FORMATS[name]().grammar({"f": schema}, is_parallel=False)
    return checked_grammar(structural_tag=json.dumps({"type": "structural_tag", "format": part}))


def call(**arguments: str) -> str:
    return QWEN.format("".join(ARGUMENT.format(*pair) for pair in arguments.items()))


@pytest.mark.parametrize(("value", "good", "bad"), VALUES, ids=[str(one[0]) for one in VALUES])
def test_values(value: Any, good: dict[str, Any], bad: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"v": value}, "required": ["v"]}
    schema["$defs"] = {**COLOR, **SHORT}
    grammar = held(schema)
    for text, meant in good.items():
        assert follows(grammar, call(v=text)), text
        assert read("qwen3_coder", call(v=text), {"f": schema})[1] == [("f", {"v": meant})]
    for text in bad:
        assert not follows(grammar, call(v=text)), text


INTEGER = {"type": "integer"}
A = {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]}
B = {"properties": {"b": INTEGER}, "required": ["b"]}
OBJECTS: list[tuple[dict[str, Any], list[dict[str, str]], list[dict[str, str]]]] = [
    ({"type": "object", "additionalProperties": INTEGER},
     [{}, {"x": "5"}, {"x": "5", "y": "6"}], [{"x": "a"}]),
    ({"$ref": "#/$defs/A", "$defs": {"A": A}}, [{"a": "5"}], [{"a": "x"}, {}, {"b": "1"}]),
    ({"allOf": [A, B]}, [{"a": "5", "b": "6"}], [{"a": "5"}, {"b": "6"}]),
    ({"oneOf": [A, {"type": "object", **B}]}, [{"a": "5"}, {"b": "6"}], [{"a": "5", "b": "6"}]),
    ({**A, "allOf": [B]}, [{"a": "5", "b": "6"}], [{"a": "5"}]),
    ({**A, "anyOf": [B, {"properties": {"c": INTEGER}}]},
     [{"a": "5", "b": "6"}, {"a": "5"}, {"a": "5", "c": "1"}], [{"b": "6"}, {"a": "5", "c": "x"}]),
    ({"type": "object", "required": ["z"]}, [{"z": "x"}, {"z": "x", "y": "y"}], [{}, {"y": "y"}]),
    ({**A, "additionalProperties": True}, [{"a": "5", "z": "x"}], [{"z": "x"}]),
    ({**A, "additionalProperties": INTEGER}, [{"a": "5", "z": "6"}], [{"a": "5", "z": "x"}]),
    ({**A, "patternProperties": {"^x": INTEGER}}, [{"a": "5", "x1": "6"}], [{"a": "5", "y": "6"}]),
    ({"properties": {"a": INTEGER, "b": {"$ref": "#/properties/a"}}}, [{"b": "5"}], [{"b": "x"}]),
    (A, [{"a": "5"}], [{"a": "5", "z": "1"}]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "good", "bad"), OBJECTS, ids=[str(one[0]) for one in OBJECTS])
def test_objects(
    schema: dict[str, Any], good: list[dict[str, str]], bad: list[dict[str, str]]
) -> None:
    grammar = held(schema)
    for arguments in good:
        assert follows(grammar, call(**arguments)), arguments
        meant = {key: int(text) if text.isdigit() else text for key, text in arguments.items()}
        assert read("qwen3_coder", call(**arguments), {"f": schema})[1] == [("f", meant)]
    for arguments in bad:
        assert not follows(grammar, call(**arguments)), arguments


def test_nested_values_of_gemma() -> None:
    schema = {
        "type": "object",
        "properties": {
            "counts": {"type": "object", "additionalProperties": INTEGER},
            "pair": {"type": "array", "prefixItems": [INTEGER, {"type": "string"}], "minItems": 2,
                     "maxItems": 2},
            "either": {"anyOf": [{"type": "string"}, INTEGER, {"$ref": "#/$defs/A"}]},
        },
        "$defs": {"A": A},
    }  # fmt: skip
    grammar = held(schema, "gemma4")
    for text, meant in (
        ("counts:{x:1,y:2}", {"counts": {"x": 1, "y": 2}}),
        ('pair:[1,<|"|>2<|"|>]', {"pair": [1, "2"]}),
        ('either:<|"|>5<|"|>', {"either": "5"}),
        ("either:5", {"either": 5}),
        ("either:{a:5}", {"either": {"a": 5}}),
    ):
        written = f"<|tool_call>call:f{{{text}}}<tool_call|>"
        assert follows(grammar, written), text
        assert read("gemma4", written, {"f": schema})[1] == [("f", meant)]
    for text in ('counts:{x:<|"|>a<|"|>}', "pair:[1]", "pair:[1,2]", "either:{b:5}"):
        assert not follows(grammar, f"<|tool_call>call:f{{{text}}}<tool_call|>"), text


def test_a_schema_that_cannot_be_resolved_does_not_stop_reading() -> None:
    deep: dict[str, Any] = {}
    for _ in range(400):
        deep = {"type": "object", "properties": {"a": deep}}
    schema = {"allOf": [deep, {**deep}], "properties": {"z": {"$ref": "#/properties/q"}}}
    assert read("qwen3_coder", call(b="x"), {"f": schema})[1] == [("f", {"b": "x"})]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({**A, "minProperties": 2, "additionalProperties": True}, "minProperties"),
        ({"allOf": [{"anyOf": [{"required": [a]} for a in "abc"]} for _ in range(5)]}, "combines"),
    ],
)
def test_what_cannot_be_held_names_the_tool(schema: dict[str, Any], message: str) -> None:
    tool = OfferedTool("f", schema, strict=True, place="tools[3].parameters")
    format = reply_format(None, TOOL_FORMATS["qwen3_coder"]())
    with pytest.raises(GrammarError, match=message) as raised:
        reply_constraint(format, CallRules([tool], "required"), trial().checked)
    assert raised.value.parameter == "tools[3].parameters"


@pytest.mark.parametrize("strict", [None, False])
def test_what_cannot_be_held_is_left_out_unless_a_tool_is_strict(strict: bool | None) -> None:
    format = reply_format(None, TOOL_FORMATS["qwen3_coder"]())
    some = [{"anyOf": [{"required": [a]} for a in "abc"]} for _ in range(5)]
    both = {"properties": {"a": INTEGER, "b": INTEGER}}
    for schema, is_held in (
        ({**A, "minProperties": 2, "additionalProperties": INTEGER}, True),
        ({**both, "maxProperties": 1}, True),
        ({**A, "allOf": some}, False),
    ):
        tool = OfferedTool("f", schema, strict=strict, place="tools[3].parameters")
        left_out: list[str] = []
        found = reply_constraint(
            format, CallRules([tool], "auto"), trial().checked, left_out=left_out
        )
        assert found is not None
        assert left_out == ([] if is_held else ["tools[3].parameters"])
        grammar = checked_grammar(structural_tag=found.structural_tag)
        assert follows(grammar, call(a="5"))
        assert follows(grammar, call(a="x")) != is_held
