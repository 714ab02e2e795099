"""Each kind of grammar: which texts follow it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from texts import checked_grammar, follows

from quire.errors import RequestError

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}
TAG = {"begin": "<fn=a>", "schema": PERSON, "end": "</fn>"}
NUMBER = {"type": "json_schema", "json_schema": {"type": "integer"}}


def _tag(begin: str, content: object, end: str = "</a>") -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


@pytest.mark.parametrize(
    ("fields", "good", "bad"),
    [
        ({"json": PERSON}, ['{"name":"x"}', '{ "name": "x",\n  "age": 3 }'], ["{}", "[]", '{"nam']),
        ({"json": json.dumps(PERSON)}, ['{"name":"é😀","age":1}'], ['{"name":1}']),
        ({"json": "true"}, ["1", "null", '{"a":1}'], ["nul", ""]),
        ({"json_object": True}, ["{}", '{"a":[1,{"b":null}]}'], ["[]", "1"]),
        ({"regex": "(a|b)+"}, ["abba"], ["", "abc"]),
        ({"regex": "a/b\n\\/"}, ["a/b\n/"], ["a/b"]),
        ({"regex": ""}, [""], ["a"]),
        ({"choice": ["yes", "no", "no", "yes!"]}, ["yes", "no", "yes!"], ["", "yesno", "ye"]),
        ({"choice": ['"\\\n/', "é😀", "\x00\x7f"]}, ['"\\\n/', "é😀", "\x00\x7f"], ['"']),
        ({"choice": [""]}, [""], ["a"]),
        ({"grammar": 'root ::= "a" digit*\ndigit ::= [0-9]'}, ["a", "a12"], ["12"]),
        ({"grammar": 'start: "a" x\nx: /[0-9]+/ | x ","'}, ["a1", "a12,,"], ["a"]),
        ({"grammar": '?start: x\nx: "a"'}, ["a"], ["b"]),
        ({"grammar": 'start: <tool> "a"'}, [], ["a"]),
    ],
)
def test_texts_of_a_grammar(fields: dict[str, Any], good: list[str], bad: list[str]) -> None:
    grammar = checked_grammar(**fields)
    assert {text: follows(grammar, text) for text in (*good, *bad)} == {
        **dict.fromkeys(good, True),
        **dict.fromkeys(bad, False),
    }


def test_white_space_is_bounded_unless_a_request_says_otherwise() -> None:
    def allowed(spaces: int, **fields: Any) -> bool:
        return follows(checked_grammar(json=PERSON, **fields), f'{{"name":{" " * spaces}"x"}}')

    assert allowed(40)
    assert not allowed(41)
    some = [{"json_object": True}, {"json": PERSON}, {"grammar": 'start: %json {"type": "object"}'}]
    some.append({"json": {"properties": {"name": {}, "id": {"const": 2**60}}, "type": "object"}})
    for fields in some:
        grammar = checked_grammar(**fields)
        texts = [f'{{{newlines}{" " * 40}"name": "x"}}' for newlines in ("\n", "\r\n", "\n" * 3)]
        assert [follows(grammar, text) for text in texts] == [True, True, False]
    assert allowed(2, whitespace_pattern=" {2}")
    assert not allowed(1, whitespace_pattern=" {2}")
    assert allowed(0, disable_any_whitespace=True)
    assert not allowed(1, disable_any_whitespace=True)
    assert not allowed(1, config={"disable_any_whitespace": True})
    assert allowed(1, config={"disable_any_whitespace": True}, whitespace_pattern=" ")
    options = {"json": {**PERSON, "x-guidance": {"whitespace_flexible": False}}}
    assert not follows(checked_grammar(**options), '{"name": "x"}')
    options = {"json": {**PERSON, "x-guidance": {"key_separator": " = "}}}
    assert follows(checked_grammar(**options), '{"name" = "x"}')


def test_properties_that_are_not_named_are_forbidden_unless_a_request_says_otherwise() -> None:
    schema = {**PERSON, "properties": {"name": {"type": "string"}, "in": PERSON}}
    texts = ['{"name":"x","z":1}', '{"name":"x","in":{"name":"y","z":1}}']
    is_open, is_closed = ({"disable_additional_properties": value} for value in (False, True))

    def allowed(config: dict[str, bool], **fields: Any) -> list[bool]:
        grammar = checked_grammar(config, json=schema, **fields)
        assert follows(grammar, '{"name":"x","in":{"name":"y"}}')
        return [follows(grammar, text) for text in texts]

    assert allowed({}) == allowed({}, **is_closed) == allowed(is_closed) == [False, False]
    assert (
        allowed({}, **is_open) == allowed(is_open) == allowed(is_closed, **is_open) == [True, True]
    )
    assert allowed(is_open, **is_closed) == [False, False]
    assert schema["properties"]["in"] is PERSON
    assert "additionalProperties" not in PERSON


@pytest.mark.parametrize(
    ("tag", "good", "bad"),
    [
        (
            {"structures": [TAG, {**TAG, "begin": "<fn=b>", "schema": None}], "triggers": ["<fn="]},
            ["no call", 'a <fn=a>{"name":"x"}</fn> b', "<fn=b>3</fn><fn=b>4</fn>"],
            ["<fn=c>", "<fn=a>3</fn>"],
        ),
        ({"format": NUMBER}, ["12"], ["x"]),
        ({"format": {"type": "any_text"}}, ["", "any < thing"], []),
        ({"format": {"type": "const_string", "value": "a\"b"}}, ['a"b'], ["a"]),
        ({"format": {"type": "regex", "pattern": "a/+"}}, ["a//"], ["a"]),
        ({"format": {"type": "grammar", "grammar": 'root ::= "x"+'}}, ["xx"], [""]),
        (
            {"type": "structural_tag", "format": {"type": "sequence", "elements": [
                _tag("<think>", {"type": "any_text"}, "</think>"), NUMBER]}},
            ["<think>a </b> c</think>12", "<think></think>1"], ["<think>a", "12"],
        ),
        (
            {"format": {"type": "any_text", "excludes": ["</a>", "b\n"], "not_first": ["{"]}},
            ["", "<a> {", "</a", "b"], ["x</a>", "b\n", " \n{", "{a"],
        ),
        (
            {"format": _tag("<a>", {"type": "any_text", "excludes": ["</a>", "<|/\\ ", "\t"]},
                "\n</a>")},
            ["<a>\n</a>", "<a><|/ b>\n\n</a>"],
            ["<a></a>\n</a>", "<a>x<|/\\ \n</a>", "<a>\t\n</a>", "<a>\n</a>\n</a>"],
        ),
        (
            {"format": {"type": "triggered_tags", "triggers": ["<a"],
                "tags": [_tag("<a>", NUMBER)], "at_least_one": True, "stop_after_first": True}},
            ["hi <a>1</a>"], ["hi", "<a>1</a>x", "<a>1</a><a>2</a>"],
        ),
        (
            {"format": {"type": "triggered_tags", "triggers": ["<a"],
                "tags": [_tag("<a>", NUMBER)], "at_least_one": True}},
            ["hi <a>1</a> <a>2</a>x"], ["hi"],
        ),
        (
            {"format": {"type": "tags_with_separator", "separator": ",",
                "tags": [_tag("<a>", NUMBER), _tag("<b>", NUMBER)]}},
            ["", "<a>1</a>", "<a>1</a>,<b>2</a>"], ["<a>1</a><a>1</a>", ","],
        ),
        (
            {"format": {"type": "members", "separator": ",", "optional": [0, 2],
                "elements": [_tag("a", NUMBER), _tag("b", NUMBER), _tag("c", NUMBER)]}},
            ["b1</a>", "a1</a>,b2</a>,c3</a>", "b1</a>,c2</a>"],
            ["", "a1</a>", "b1</a>,b2</a>", "b1</a>,a2</a>", ",b1</a>", "b1</a>,"],
        ),
        (
            {"format": {"type": "repeat", "content": _tag("<a>", NUMBER), "min": 2, "max": 3}},
            ["<a>1</a>" * 2, "<a>1</a>" * 3], ["", "<a>1</a>", "<a>1</a>" * 4],
        ),
        (
            {"format": {"type": "repeat", "content": {"type": "const_string", "value": "ab"},
                "min": 1000}},
            ["ab" * 1000, "ab" * 1500], ["ab" * 999],
        ),
        (
            {"format": {"type": "named", "name": "list", "content": _tag("[", {"type": "or",
                "elements": [NUMBER, {"type": "reference", "name": "list"}]}, "]")}},
            ["[1]", "[[[1]]]"], ["1", "[]", "[[1]"],
        ),
        (
            {"format": {"type": "or", "elements": [NUMBER, {"type": "star", "content":
                {"type": "sequence", "elements": [NUMBER, {"type": "const_string",
                 "value": ";"}]}}]}},
            ["1", "", "1;22;"], ["1;2"],
        ),
    ],
)  # fmt: skip
def test_texts_of_structural_tags(tag: object, good: list[str], bad: list[str]) -> None:
    grammar = checked_grammar(structural_tag=json.dumps(tag))
    assert {text: follows(grammar, text) for text in (*good, *bad)} == {
        **dict.fromkeys(good, True),
        **dict.fromkeys(bad, False),
    }


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ([], "must be an object"),
        ({}, "needs either structures and triggers, or format"),
        ({"type": "text", "format": NUMBER}, "has the type structural_tag"),
        ({"structures": [], "triggers": ["<"]}, "needs structures, a list that is not empty"),
        ({"structures": [TAG], "triggers": []}, "needs triggers, a list"),
        ({"structures": [TAG], "triggers": ["<b"]}, "Trigger '<fn=a>' not found in triggers"),
        ({"structures": [{"begin": "<"}], "triggers": ["<"]}, "needs end, a text"),
        ({"structures": [3], "triggers": ["<"]}, "needs begin, a text"),
        ({"format": {"type": "qwen_xml_parameter"}}, "a type that does not work; use one of"),
        ({"format": {**NUMBER, "style": "qwen_xml"}}, "has a part with style"),
        ({"format": {"type": "any_text", "excludes": ["x", 3]}}, "needs excludes, a list of texts"),
        ({"format": {"type": "sequence", "elements": [{"type": "any_text"}, NUMBER]}}, "any_text"),
        (
            {"format": {"type": "members", "elements": [NUMBER], "separator": "", "optional": 3}},
            "needs optional, a list of positions",
        ),
        (
            {"format": _tag("<a>", {"type": "any_text", "excludes": [""]}, "</a>")},
            "needs excludes, a list of texts",
        ),
        (
            {"format": _tag("<a>", {"type": "any_text", "excludes": ["x"] * 33}, "</a>")},
            "33 excludes",
        ),
        (
            {"format": {"type": "repeat", "content": NUMBER, "min": 2, "max": 1}},
            "a repeat whose max is below its min",
        ),
        ({"format": {"type": "repeat", "content": NUMBER, "min": -1}}, "needs min, a number"),
        ({"format": {"type": "repeat", "content": NUMBER, "max": 10**7}}, "10000000 as max"),
        ({"format": {"type": "reference", "name": "a"}}, "a part that is not there, got 'a'"),
        (
            {
                "format": {
                    "type": "named",
                    "name": "a",
                    "content": {"type": "reference", "name": "a"},
                }
            },
            "no text matches it",
        ),
        ({"format": {"type": "json_schema", "json_schema": 3}}, "must be a JSON schema"),
        ({"format": _tag("<a>", {"type": "any_text"}, "")}, "needs the tag's end"),
    ],
)
def test_a_tag_that_does_not_work_is_named(tag: object, message: str) -> None:
    with pytest.raises(RequestError, match=message) as raised:
        checked_grammar(structural_tag=json.dumps(tag))
    assert raised.value.parameter == "structured_outputs.structural_tag"
