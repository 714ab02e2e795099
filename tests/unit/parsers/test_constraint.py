"""The form of replies with calls: what is allowed, and which errors there are."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.structured.texts import follows, trial, vocabulary

from quire.errors import GrammarError, RequestError
from quire.parsers.call_rules import CallRules, OfferedTool
from quire.parsers.constraint import named_as_tools, reply_constraint
from quire.parsers.format import ReplyFormat
from quire.parsers.parser import ReplyParser
from quire.parsers.reasoning_tags import ReasoningTags
from quire.parsers.registry import REASONING_FORMATS, TOOL_FORMATS
from quire.parsers.tool_formats.hermes import HermesCalls
from quire.structured.params import StructuredOutputsParams
from quire.structured.source import grammar_of

PLAIN = ReplyFormat(None, HermesCalls())
THINKING = ReplyFormat(ReasoningTags("<think>", "</think>"), HermesCalls())
NUMBER = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
TOOLS = (OfferedTool("f", NUMBER, place="tools[0].function.parameters"), OfferedTool("g"))


def call(name: str = "f", arguments: str = '{"n": 1}') -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


F, G = call(), call("g", '{"any": []}')


def allows(
    text: str,
    choice: Any = "auto",
    *,
    format: ReplyFormat = PLAIN,
    tools: Any = TOOLS,
    is_reasoning: bool = False,
    content: dict[str, Any] | None = None,
    **fields: Any,
) -> bool:
    rules = CallRules(tools, choice, **fields)
    check = trial().checked
    spec = StructuredOutputsParams(**content) if content else None
    wanted = reply_constraint(format, rules, check, is_reasoning=is_reasoning, content=spec)
    assert wanted is not None
    with named_as_tools(rules, check, spec):
        return follows(grammar_of(check(wanted), vocabulary().added), text)


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        (F, True),
        (f"\n {F}\n{G}", True),
        ("", False),
        ("text", False),
        (f"text{F}", False),
        (f"{F}text", False),
        (call("h"), False),
        (call(arguments="{}"), False),
        (call(arguments='{"n": "1"}'), False),
    ],
)
def test_required(text: str, is_allowed: bool) -> None:
    assert allows(text, "required") == is_allowed


def test_a_named_tool_is_the_only_one_and_is_called_once() -> None:
    rules = {"only": ("f",), "is_parallel": False}
    allowed = [text for text in (F, G, f"{F}\n{F}", "") if allows(text, "required", **rules)]
    assert allowed == [F]


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        ("", True),
        ("a text with <tool_call", True),
        (F, True),
        (f"a {F} b\n{G}{F} c < <tool", True),
        ("a <tool_call>", False),
        ("a <tool_call> b", False),
        (f"a {call('h')}", False),
        (f"{F} {call(arguments='{}')}", False),
        (f"{F} a <tool_call>b", False),
    ],
)
def test_auto(text: str, is_allowed: bool) -> None:
    assert allows(text) == is_allowed


BARE = '{"name": "f", "parameters": {"n": 1}}'
LISTED = '[{"name": "f", "arguments": {"n": 1}}]'


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (
            "llama3_json",
            [BARE, f"a {{ {BARE}; {BARE} b", 'a {"x": {}} {"name": "John", "age": 3}', "{"],
            [
                BARE.replace("1", '"1"'), 'a {"name": "h", "parameters": {}}', '{"parameters": 3',
                '{"name": "f"}', '{"id": "x", "name":"f"', '{"name": "h", "arguments": {}}',
            ],
        ),
        (
            "xlam",
            [
                LISTED, f"a {LISTED} b", f"```json\n{LISTED}\n```", "```python\n[1, {}]\n```",
                '[{"x": "John"}]', BARE,
            ],
            [LISTED.replace('"f"', '"h"'), '[TOOL_CALLS]{"arguments": 1'],
        ),
        (
            "phi4_mini_json",
            [f"functools{LISTED}", "import functools\n"],
            ['functools[{"name": "h"', "functools [", 'functools{"name"'],
        ),
        ("granite", [f"<|tool_call|>{LISTED}", f"a<tool_call>{LISTED}"], ["<tool_call>"]),
        (
            "ernie45",
            [f"<response>\na</response>{F}", "<response>"],
            ["<tool_call>", f"<tool_call>{LISTED}"],
        ),
    ],
)  # fmt: skip
def test_auto_with_other_marks(name: str, good: list[str], bad: list[str]) -> None:
    format = ReplyFormat(None, TOOL_FORMATS[name]())
    allowed = {text: allows(text, format=format) for text in (*good, *bad)}
    assert allowed == {**dict.fromkeys(good, True), **dict.fromkeys(bad, False)}


def test_calls_that_look_like_any_json_leave_no_room_for_other_json() -> None:
    format = ReplyFormat(None, TOOL_FORMATS["llama3_json"]())
    with pytest.raises(RequestError, match="no marker separates its calls") as raised:
        allows("{}", format=format, content={"json_object": True})
    assert raised.value.parameter == "tool_choice"
    assert allows(BARE, "required", format=format, content={"json_object": True})


def test_without_parallel_calls_a_reply_ends_after_the_first() -> None:
    texts = [f"a{F}", F, "a", f"{F}\n{G}", f"{F}a"]
    assert [text for text in texts if allows(text, is_parallel=False)] == [f"a{F}", F, "a"]
    assert not allows(f"{F}\n{F}", "required", is_parallel=False)


SOLAR = (
    "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>f<|tool_call:args|>"
    '{"n": 1}<|tool_call:end|>'
)


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_calls_in_a_message_of_their_own(choice: str) -> None:
    format = ReplyFormat(REASONING_FORMATS["solar_open"], TOOL_FORMATS["solar_open"]())
    message = f"<|begin|>assistant{SOLAR}"
    assert allows(SOLAR, choice, format=format)
    assert allows(f"<|think|>a<|end|>{message}", choice, format=format)
    assert not allows(f"<|think|>a<|end|>{message.replace('1}', 'x}')}", choice, format=format)
    is_text = allows(f"<|content|>a<|end|>{message}", choice, format=format)
    assert is_text == (choice == "auto")


@pytest.mark.parametrize(
    ("text", "choice", "is_reasoning", "is_allowed"),
    [
        (f"<think>hm</think>\n\n{F}", "required", False, True),
        (F, "required", False, True),
        (f"hm</think>{F}", "required", True, True),
        (F, "required", True, False),
        (f"<think>{F}</think>{F}", "required", False, False),
        (f"<think>hm{F}", "required", False, False),
        (f"\n<think></think>a{F}b", "auto", False, True),
        (f"a<think>{F}", "auto", False, True),
        (f"<think>a{F}", "auto", False, False),
        (f"<think>a</think>{call('h')}", "auto", False, False),
        ("hm</think>", "auto", True, True),
        ("hm", "auto", True, False),
    ],
)
def test_reasoning_comes_first(
    text: str, choice: str, is_reasoning: bool, is_allowed: bool
) -> None:
    assert allows(text, choice, format=THINKING, is_reasoning=is_reasoning) == is_allowed


SCHEMA = {"json": {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}}


@pytest.mark.parametrize(
    ("content", "good", "bad"),
    [
        (SCHEMA, ['{"a":null}'], ["{}", "a"]),
        ({"json_object": True}, ["{}"], ["[]"]),
        ({"regex": "(.|\\n)*x"}, ["<x", "<tool_calx"], ["y"]),
        ({"choice": ["<to", "<tool", "a/b"]}, ["<to", "a/b"], ["<tool_", "<"]),
        ({"grammar": 'start: "a" B*\nB: /[b<]/'}, ["ab<"], ["b"]),
        ({"structural_tag": json.dumps({"format": {"type": "any_text"}})}, ["a"], []),
        (
            {"structural_tag": json.dumps({"triggers": ["<b"], "structures": [
                {"begin": "<b>", "schema": {"type": "null"}, "end": "</b>"}]})},
            ["<b>null</b>c"], ["<b>1</b>"],
        ),
    ],
)  # fmt: skip
def test_the_content_of_auto_may_have_a_form_too(
    content: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    for format, before in ((PLAIN, ""), (THINKING, "<think>hm</think>")):
        for text in (*good, F, f"{F}\n{G}"):
            assert allows(before + text, format=format, content=content), text
        for text in (*bad, call("h"), f"a{F}"):
            assert not allows(before + text, format=format, content=content), text


def test_the_content_alone_comes_behind_the_reasoning() -> None:
    rules = CallRules((), "none")
    spec = StructuredOutputsParams(**SCHEMA)
    assert reply_constraint(PLAIN, rules, trial().checked, content=spec) is spec
    assert reply_constraint(PLAIN, CallRules(TOOLS, "none"), trial().checked) is None
    assert allows('<think>a</think>{"a":null}', "none", format=THINKING, content=SCHEMA)
    assert not allows(F, "none", format=THINKING, content=SCHEMA)


@pytest.mark.parametrize(
    ("level", "strict", "is_held"),
    [
        ("auto", None, True),
        ("auto", False, True),
        ("function", None, False),
        ("function", False, False),
        ("function", True, True),
        ("parameter", False, True),
    ],
)
def test_levels_of_strictness(level: Any, strict: bool | None, is_held: bool) -> None:
    tools = (OfferedTool("f", NUMBER, strict),)
    assert allows(F, tools=tools, level=level)
    assert allows(call(arguments='{"n": "1"}'), tools=tools, level=level) != is_held
    assert not allows(call("h"), tools=tools, level=level)
    assert not allows(call(arguments="3"), tools=tools, level=level)


IMPOSSIBLE = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}


@pytest.mark.parametrize("strict", [None, False])
def test_keywords_that_cannot_be_compiled_say_nothing(strict: bool | None) -> None:
    tools = (OfferedTool("f", IMPOSSIBLE, strict=strict),)
    assert allows(call(arguments='{"a": 3}'), tools=tools)
    number = {"type": "object", "properties": {"n": {"type": "integer", "not": {"const": 3}}}}
    tools = (OfferedTool("f", number, strict=strict),)
    assert allows(F, tools=tools)
    assert not allows(call(arguments='{"n": "1"}'), tools=tools)
    with pytest.raises(RequestError):
        allows(F, tools=tools, level="parameter")


def test_arguments_are_an_object_always() -> None:
    for parameters in (None, {}, {"properties": {}}, {"type": ["null", "object"]}):
        tools = (OfferedTool("f", parameters),)
        assert allows(call(arguments="{}"), tools=tools)
        assert not allows(call(arguments="null"), tools=tools)


def deep(levels: int) -> Any:
    return json.loads('{"items":' * levels + "{}" + "}" * levels)


UNUSABLE: dict[str, Any] = {
    "look-ahead": {"type": "string", "pattern": "^(?!a).*$"},
    "look-behind": {"type": "string", "pattern": "(?<=a)b"},
    "back-reference": {"type": "string", "pattern": r"(a)\1"},
    "broken pattern": {"type": "string", "pattern": "("},
    "type any": {"type": "any"},
    "type in capitals": {"type": "STRING"},
    "type null": {"type": None},
    "types within types": {"type": [["string"]]},
    "null as items": {"type": "array", "items": None},
    "null as required": {"type": "object", "required": [None]},
    "text as properties": {"type": "object", "properties": "a"},
    "text as required": {"type": "object", "required": "a"},
    "text as enum": {"enum": "a"},
    "remote reference": {"$ref": "https://example.com/schema.json"},
    "missing reference": {"$ref": "#/$defs/a"},
    "multiple of zero": {"type": "number", "multipleOf": 0},
    "multiple of 0.07": {"type": "number", "multipleOf": 0.07},
    "bounds apart": {"allOf": [{"minimum": -(2**63)}, {"type": "integer"}]},
    "text as a bound": {"type": "integer", "minimum": "1"},
    "text as a length": {"type": "string", "minLength": "x"},
    "nested deeply": deep(100),
    "many values": {"enum": [str(i) for i in range(20_000)]},
    "unique items": {"type": "array", "uniqueItems": True, "minItems": -1},
}


@pytest.mark.parametrize("kind", UNUSABLE)
@pytest.mark.parametrize("family", ["hermes", "qwen3_xml"])
def test_a_tool_that_cannot_be_held_to_its_schema_takes_any_object(kind: str, family: str) -> None:
    """With the choice `auto`, and without `strict`: other tools are held to theirs."""
    wrong = {"type": "object", "properties": {"a": UNUSABLE[kind]}, "required": ["a"]}
    tools = (TOOLS[0], OfferedTool("h", wrong, place="tools[1].function.parameters"))
    rules, check, left_out = CallRules(tools), trial().checked, list[str]()
    format = ReplyFormat(None, TOOL_FORMATS[family]())
    form = reply_constraint(format, rules, check, left_out=left_out)
    assert form is not None
    assert left_out == [tools[1].place]
    grammar = grammar_of(check(form), vocabulary().added)
    if family == "hermes":
        assert follows(grammar, call("h", '{"a": [null]}'))
        assert follows(grammar, F)
        assert not follows(grammar, call("f", '{"n": "1"}'))
    events = ReplyParser(format, {"f": NUMBER, "h": wrong}).read(
        call("h", '{"a": 1}'), is_last=True
    )
    assert events

    for strict, choice in ((True, "auto"), (None, "required")):
        held = CallRules((replace(tools[1], strict=strict),), choice)
        with pytest.raises(GrammarError) as raised:
            reply_constraint(format, held, check)
        assert raised.value.parameter == tools[1].place


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (IMPOSSIBLE, r"Unimplemented keys: .* \(at #/properties/a\); with .strict.: false"),
        ({"type": "string"}, "must have the type object"),
        ({"properties": {str(i): {} for i in range(2000)}}, "2000 properties of one object"),
        ({"$ref": "http://x/y"}, "nothing is fetched"),
        ({"description": "x" * 600_000}, "bytes"),
        (json.loads('{"not":' * 100 + "{}" + "}" * 100), "nested too deeply"),
        ({"enum": []}, "does not work"),
    ],
)
def test_a_schema_that_does_not_work_is_named(parameters: Any, message: str) -> None:
    place = "tools[1].function.parameters"
    tools = (TOOLS[0], OfferedTool("h", parameters, strict=True, place=place))
    with pytest.raises(RequestError, match=message) as raised:
        allows(F, tools=tools)
    assert raised.value.parameter == place
    assert "structured_outputs" not in str(raised.value)


@pytest.mark.parametrize("choice", ["none", "auto"])
def test_content_that_does_not_work_is_named(choice: str) -> None:
    """Also where tools are offered that may not be called, or none."""
    tools, content = TOOLS if choice == "auto" else (), {"json": {"type": "zz"}}
    with pytest.raises(RequestError) as raised:
        allows(F, choice, format=THINKING, tools=tools, is_reasoning=True, content=content)
    assert str(raised.value) == "structured_outputs.json does not work: Invalid type: zz (at #)"


def test_many_tools_are_too_many() -> None:
    tools = [OfferedTool(f"t{i}", NUMBER) for i in range(257)]
    with pytest.raises(RequestError, match="not 257") as raised:
        allows(F, tools=tools)
    assert raised.value.parameter == "tools"
