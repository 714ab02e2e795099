"""Schemas that llguidance would read otherwise than JSON Schema: what is written is valid."""

from __future__ import annotations

import datetime
import json
import re
from typing import Any

import pytest
from texts import checked_grammar, follows

from quire.errors import RequestError
from quire.structured.schemas.patterns import rust_pattern


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
