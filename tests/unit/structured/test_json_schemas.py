"""A document follows the grammar of a schema exactly if it is valid, as `jsonschema` says.
Schemas that llguidance would read otherwise than JSON Schema are among them.

A few cases of each keyword here; the public JSON-Schema-Test-Suite, which lies in jsonschema's
source distribution, with QUIRE_JSON_SCHEMA_SUITE=jsonschema-4.26.0/json/tests and `-m long`.
"""

from __future__ import annotations

import datetime
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from texts import checked_grammar, follows

from quire.errors import RequestError
from quire.structured.schemas.patterns import rust_pattern

CASES: list[tuple[dict[str, Any], list[Any]]] = [
    ({"type": "integer"}, [1, -3, 0, 1.5, "1", None, True, [], 10**18]),
    ({"type": "number"}, [1, -3.25, 1e30, "1", None]),
    ({"type": ["string", "null"]}, ["", "\u00e9\U0001f600\n\"\\", None, 1]),
    ({"type": "boolean"}, [True, False, "true"]),
    ({"enum": [1, "a", None, {"b": [2]}]}, [1, "a", None, {"b": [2]}, 2, {"b": []}]),
    ({"const": [1, {"a": None}]}, [[1, {"a": None}], [1], 1]),
    ({"minimum": 2, "maximum": 7, "type": "integer"}, [1, 2, 7, 8]),
    ({"exclusiveMinimum": 0, "exclusiveMaximum": 1, "type": "number"}, [0, 0.5, 1, -0.5]),
    ({"type": "integer", "multipleOf": 7}, [0, 7, 77, -14, 8]),
    ({"type": "number", "multipleOf": 0.25}, [0.25, 1, 0.3]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["a", "ab", "\u00e9\U0001f600x", "abcd"]),
    ({"type": "string", "pattern": "^[a-c]+[0-9]?$"}, ["abc", "a1", "1a", "a12", ""]),
    ({"type": "string", "pattern": "b"}, ["abc", "ac"]),
    ({"type": "string", "format": "date"}, ["2024-02-29", "2024-13-01", "x"]),
    ({"type": "string", "format": "uuid"}, ["2eb8aa08-aa98-11ea-b4aa-73b441d16380", "2eb8aa08"]),
    ({"type": "array", "items": {"type": "integer"}}, [[], [1, 2], [1, "a"], {}]),
    ({"type": "array", "prefixItems": [{"type": "integer"}], "items": False}, [[], [1], [1, 2]]),
    ({"type": "array", "minItems": 1, "maxItems": 2}, [[], [1], [1, 2], [1, 2, 3]]),
    (
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]},
        [{"a": 1}, {"a": 1, "b": 2}, {"b": 1}, {"a": "x"}, {"a": 1, "z": 1}, {}],
    ),
    ({"properties": {"a": {}}, "additionalProperties": False}, [{}, {"a": 1}, {"b": 1}, 3]),
    ({"type": "object", "additionalProperties": {"type": "null"}}, [{"x": None}, {"x": 1}]),
    ({"patternProperties": {"^x": {"type": "integer"}}}, [{"xa": 1}, {"xa": "1"}, {"a": "1"}]),
    ({"type": "object", "minProperties": 1, "maxProperties": 2}, [{}, {"a": 1}, {"a": 1, "b": 2}]),
    ({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]}, [1, "a", "ab", None]),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a", None]),
    (
        {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"required": ["a"]}]},
        [{"a": 1}, {"a": "b"}, {}, 1],
    ),
    (
        {"$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}},
                         "additionalProperties": False}}, "$ref": "#/$defs/n"},
        [{}, {"next": {"next": {}}}, {"next": 1}, {"other": {}}],
    ),
    ({"title": "T", "default": 1, "examples": [1], "type": "integer"}, [1, "a"]),
    ({}, [1, "a", None, [], {"a": {"b": [1]}}]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "documents"), CASES, ids=[str(c[0])[:40] for c in CASES])
def test_a_document_follows_exactly_if_it_is_valid(
    schema: dict[str, Any], documents: list[Any]
) -> None:
    validator = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    grammar = checked_grammar(json=schema, disable_additional_properties=False)
    valid = [validator.is_valid(document) for document in documents]
    assert True in valid
    assert [
        follows(grammar, json.dumps(document, ensure_ascii=False)) for document in documents
    ] == valid


# --- the public suite

SUITE = os.environ.get("QUIRE_JSON_SCHEMA_SUITE", "")
TOO_MUCH = {"content.json"}
"""`contentMediaType` is an annotation, as in 2019-09 and later."""


def _cases(draft: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted((Path(SUITE) / draft).rglob("*.json")):
        for case in json.loads(path.read_text()):
            yield path, case


@pytest.mark.long
@pytest.mark.skipif(not SUITE, reason="QUIRE_JSON_SCHEMA_SUITE names no folder")
@pytest.mark.parametrize("draft", ["draft2020-12", "draft2019-09", "draft7", "draft6", "draft4"])
def test_what_is_not_valid_is_not_written(draft: str) -> None:
    wrong, num_right, num_strict = [], 0, 0
    for path, case in _cases(draft):
        try:
            schema = json.dumps(case["schema"])
            grammar = checked_grammar(json=schema, disable_additional_properties=False)
        except RequestError:
            continue  # it says so
        for test in case["tests"]:
            text = json.dumps(test["data"], ensure_ascii=False)
            does = follows(grammar, text)
            num_right += does == test["valid"]
            num_strict += test["valid"] and not does
            if does and not test["valid"] and path.name not in TOO_MUCH:
                wrong.append((path.name, case["description"], test["description"]))
    assert wrong == []
    assert num_right > 500
    # One spelling of a number, one order of properties, formats that are checked.
    assert num_strict < num_right * 0.06


def accepted(schema: dict[str, Any], texts: list[str]) -> list[str]:
    """Those of the texts that the schema lets a model write."""
    grammar = checked_grammar(json=schema)
    return [text for text in texts if follows(grammar, json.dumps(text, ensure_ascii=False))]


def of_format(name: str, texts: list[str], **more: Any) -> list[str]:
    return accepted({"type": "string", "format": name, **more}, texts)


@pytest.mark.parametrize("year", [1600, 1900, 2000, 2004, 2021, 2024, 2100])
def test_dates_are_days_of_the_calendar(year: int) -> None:
    texts = [f"{year}-{month:02}-{day:02}" for month in range(14) for day in (0, 1, 28, 29, 30, 31)]

    def is_day(text: str) -> bool:
        try:
            datetime.date.fromisoformat(text)
        except ValueError:
            return False
        return True

    days = [text for text in texts if is_day(text)]
    assert of_format("date", texts) == days
    times = [f"{text}T12:00:00Z" for text in texts]
    assert of_format("date-time", times) == [f"{text}T12:00:00Z" for text in days]


def test_times_have_an_offset_and_leap_seconds_end_a_day_in_utc() -> None:
    good = ["00:00:00Z", "23:59:59.5z", "23:59:60Z", "23:59:60.25+00:00", "12:30:00-23:59"]
    bad = ["24:00:00Z", "12:60:00Z", "12:00:61Z", "12:00:00", "12:00:00+24:00", "12:00:00+1:00"]
    leaps = ["22:59:60Z", "23:58:60Z", "23:59:60+01:00", "23:59:60-00:30"]
    assert of_format("time", good + bad + leaps) == good
    days = [f"2016-12-31T{time}" for time in good + bad + leaps]
    assert of_format("date-time", days) == days[: len(good)]


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("ipv4", ["127.0.0.1", "255.255.255.255"], ["256.0.0.1", "1\u09e87.0.0.1", "1.2.3"]),
        ("ipv6", ["::1", "1:2:3:4:5:6:7:8"], [" ::1", "::1 ", "1::2::3", ":1"]),
        ("uri", ["http://a/b?c#d", "mailto:a@b.c"], ["http://a b", "//a", "http:// x", "a"]),
        (
            "uri-reference",
            ["", "#a", "?q", "a/b", "../c", "//host:80/x", "http://u@h/p?q#f", "urn:a:b", "/"],
            ["a b", "\\\\a", "#a\\b", "1:b", "%zz", "\u00e4", "http://[x"],
        ),
        ("json-pointer", ["", "/a/0", "/~0~1", "/"], ["a", "/~2", "/~", "#"]),
        ("relative-json-pointer", ["0", "1/a", "12#"], ["01", "-1", "/a", "0##", ""]),
    ],
)  # fmt: skip
def test_other_formats(name: str, good: list[str], bad: list[str]) -> None:
    assert of_format(name, good + bad) == good


def test_a_format_beside_a_pattern_and_others() -> None:
    days = ["2021-02-28", "2021-02-29", "2020-02-29"]
    assert of_format("date", days, pattern="29$") == ["2020-02-29"]
    assert of_format("date", days, pattern="^20", allOf=[{"pattern": "28$"}]) == ["2021-02-28"]
    grammar = checked_grammar(json={"format": "date"})
    assert follows(grammar, "3")
    assert not follows(grammar, '"3"')


def test_formats_that_json_schema_does_not_have_are_annotations() -> None:
    assert of_format("password", ["x"]) == ["x"]
    grammar = checked_grammar(json={"type": "integer", "format": "int64"})
    assert follows(grammar, "3")
    with pytest.raises(RequestError, match=r"Unknown format: iri \(at #/properties/a\)"):
        checked_grammar(json={"properties": {"a": {"format": "iri"}}})
    named = {"properties": {"format": {"type": "integer"}, "pattern": {"const": "."}}}
    assert follows(checked_grammar(json=named), '{"format": 1, "pattern": "."}')
    assert follows(checked_grammar(json={"const": {"format": "x"}}), '{"format": "x"}')


def test_items_need_not_be_unique() -> None:
    assert follows(checked_grammar(json={"type": "array", "uniqueItems": False}), "[1, 1]")
    with pytest.raises(RequestError, match="uniqueItems"):
        checked_grammar(json={"type": "array", "uniqueItems": True})


def test_base64_is_checked() -> None:
    texts = ["", "YQ==", "YWI=", "YWJj", "YWJjZA==", "YQ=", "a", "Y%==", "{}"]
    schema = {"type": "string", "contentEncoding": "base64"}
    assert accepted(schema, texts) == ["", "YQ==", "YWI=", "YWJj", "YWJjZA=="]


def test_an_id_beside_a_reference_is_refused() -> None:
    schema = {
        "$defs": {"a": {"type": "integer"}},
        "properties": {"b": {"$id": "http://x/y", "$ref": "#/$defs/a"}},
    }
    with pytest.raises(RequestError, match=r"\$id next to a \$ref .*at #/properties/b"):
        checked_grammar(json=schema)
    named = {"properties": {"$id": {"type": "integer"}, "$ref": {"type": "integer"}}}
    assert follows(checked_grammar(json=named), '{"$id": 1, "$ref": 2}')


SPACES = " \t\n\v\f\r\u00a0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
OTHERS = "a\u0085\u180e\u200b0_"


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        (r"^\s$", SPACES),
        (r"^\S$", OTHERS),
        (r"^[\s]$", SPACES),
        (r"^[\S]$", OTHERS),
        (r"^[^\s]$", OTHERS),
        (r"^[^\Sx]$", SPACES),
        (r"^[\s0_]$", SPACES + "0_"),
        (r"^.$", "".join(sorted(set(SPACES + OTHERS) - set("\n\r\u2028\u2029")))),
        (r"^[.]$", ""),
        (r"^\u0061$", "a"),
        (r"^[\u0061]$", "a"),
    ],
)
def test_patterns_mean_what_ecma_262_says(pattern: str, matched: str) -> None:
    texts = list(SPACES + OTHERS)
    assert set(accepted({"type": "string", "pattern": pattern}, texts)) == set(matched)


def test_signs_that_only_rust_reads_in_a_class() -> None:
    texts = ["a", "&", "[", "~", "b"]
    assert accepted({"type": "string", "pattern": "^[a&&b]$"}, texts) == ["a", "&", "b"]
    assert accepted({"type": "string", "pattern": "^[[~~a]$"}, texts) == ["a", "[", "~"]
    keys = {"type": "object", "patternProperties": {r"^\s$": {}}, "additionalProperties": False}
    grammar = checked_grammar(json=keys)
    assert follows(grammar, '{"\ufeff": 1}')
    assert not follows(grammar, '{"\u0085": 1}')


@pytest.mark.parametrize(
    ("rest", "good"),
    [
        (r"\d*\.?\d*$", ["0", "-1.5", "+.5", "7.", "123456.789"]),
        (r"\d*\.?\d{0,2}0*$", ["0", "-1.5", "12.34"]),
        (r"(?:\d{0,3}|(?=[\d.]{1,4}0*$)\d*\.\d*0*$)", ["0", "123", "1.23", "-12.3"]),
        (r"(?:\d{0,3}|(?=[\d.]{1,6}0*$)\d{0,3}\.\d{0,2}0*$)", ["0", "123", "-123.45"]),
        (r"(?:\d{0,0}|(?=[\d.]{1,3}0*$)\d{0,0}\.\d{0,2}0*$)", ["0", "0.12"]),
    ],
)
def test_decimal_numbers_of_pydantic(rest: str, good: list[str]) -> None:
    pattern = rf"^(?!^[-+.]*$)[+-]?0*{rest}"
    texts = [
        "0", "123", "1.23", "-12.3", "-123.45", "0.12", "-1.5", "+.5", "7.", "12.34", "123456.789",
        "", "-", ".", "+.", "1.2.3", "1e5", "12345.678x", "1,5", "--1",
    ]  # fmt: skip
    found = accepted({"type": "string", "pattern": pattern}, texts)
    assert set(good) <= set(found)
    assert all(re.search(pattern, text) for text in found)
    assert not set(found) & {"", "-", ".", "+.", "1.2.3", "1e5", "12345.678x", "1,5", "--1"}


def test_other_look_ahead_is_refused() -> None:
    assert rust_pattern(r"^(?!^[-+.]*$)[+-]?0*x") == r"^(?!^[-+.]*$)[+-]?0*x"
    with pytest.raises(RequestError, match="look"):
        checked_grammar(json={"type": "string", "pattern": "^(?!a).*$"})
