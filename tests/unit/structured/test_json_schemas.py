"""A document follows the grammar of a schema exactly if it is valid, as `jsonschema` says.

A few cases of each keyword here; the public JSON-Schema-Test-Suite, which lies in jsonschema's
source distribution, with QUIRE_JSON_SCHEMA_SUITE=jsonschema-4.26.0/json/tests and `-m long`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from texts import checked_grammar, follows

from quire.errors import RequestError

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
