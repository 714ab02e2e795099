"""`StructuredOutputsParams` field by field: what is taken, and what error names the field."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quire.errors import ConfigError, RequestError
from quire.structured.params import (
    GuidedDecodingParams,
    StructuredOutputsConfig,
    StructuredOutputsParams,
    structured_outputs_of,
)


class _Model:
    @staticmethod
    def model_json_schema() -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("fields", "parameter", "message"),
    [
        ({}, "", "You must use one kind of structured outputs constraint but none are specified"),
        ({"disable_any_whitespace": True}, "", "none are specified"),
        ({"json": {}, "regex": "a"}, "", "You can only use one kind .* multiple are specified"),
        ({"json": {}, "json_object": False}, "", "multiple are specified: {'json': {}"),
        ({"json": 3}, "json", "must be a JSON schema, as a dict or a text, got 3"),
        ({"json": _Model}, "json", r"of a pydantic model: its model_json_schema\(\)"),
        ({"json": " "}, "json", "structured_outputs.json cannot be an empty string"),
        ({"regex": b"a"}, "regex", "must be a text"),
        ({"regex": "a\0"}, "regex", "must not contain a NUL character"),
        ({"regex": "\ud800"}, "regex", "must be valid Unicode"),
        ({"choice": []}, "choice", "cannot be an empty list"),
        ({"choice": "abc"}, "choice", "must be a list of texts"),
        ({"choice": ["a", 1]}, "choice", "must be a list of texts"),
        ({"choice": ["\udc00"]}, "choice", "must be a list of texts"),
        ({"grammar": "\n"}, "grammar", "structured_outputs.grammar cannot be an empty string"),
        ({"grammar": ["a"]}, "grammar", "must be a text"),
        ({"json_object": False}, "json_object", "must be True if set"),
        ({"json_object": 1}, "json_object", "must be True or False"),
        ({"structural_tag": ""}, "structural_tag", "cannot be an empty string"),
        ({"structural_tag": {}}, "structural_tag", "must be a text"),
        ({"json": {}, "whitespace_pattern": 1}, "whitespace_pattern", "must be a text"),
        ({"json": {}, "whitespace_pattern": "\0"}, "whitespace_pattern", "NUL"),
        ({"json": {}, "disable_any_whitespace": 1}, "disable_any_whitespace", "True or False"),
        (
            {"json": {}, "disable_additional_properties": 1},
            "disable_additional_properties",
            "True or False",
        ),
        (
            {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True},
            "whitespace_pattern",
            "has no use with disable_any_whitespace",
        ),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], parameter: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as raised:
        StructuredOutputsParams(**fields)
    assert raised.value.parameter == f"structured_outputs.{parameter}".rstrip(".")


def test_order_of_the_fields_is_that_of_vllm() -> None:
    assert StructuredOutputsParams.__struct_fields__ == (
        "json", "regex", "choice", "grammar", "json_object", "disable_any_whitespace",
        "disable_additional_properties", "whitespace_pattern", "structural_tag",
        "backend",  # of earlier versions
    )  # fmt: skip
    assert StructuredOutputsParams(None, "a+").regex == "a+"


def test_kind_is_the_field_that_is_given() -> None:
    assert StructuredOutputsParams(choice=("a", "b")).choice == ["a", "b"]  # type: ignore[arg-type]
    assert StructuredOutputsParams(json={}).kind == "json"
    spec = StructuredOutputsParams(structural_tag="{}")
    assert (spec.kind, spec.all_non_structural_tag_constraints_none()) == ("structural_tag", True)
    assert not spec.all_constraints_none()


def test_goes_to_another_process_and_back() -> None:
    for spec in (StructuredOutputsParams(json={"a": 1}), StructuredOutputsParams(choice=["a"])):
        data = msgspec.msgpack.encode(spec)
        assert msgspec.msgpack.decode(data, type=StructuredOutputsParams) == spec


def test_older_name_becomes_the_newer_one() -> None:
    given = GuidedDecodingParams(regex="a", backend="guidance")
    assert structured_outputs_of(given) == StructuredOutputsParams(regex="a")
    assert type(structured_outputs_of(given)) is StructuredOutputsParams
    GuidedDecodingParams(regex="a", backend="xgrammar:no-fallback")
    with pytest.raises(RequestError, match="is not known; use auto, guidance"):
        GuidedDecodingParams(regex="a", backend="grammars")


def test_from_what_json_has() -> None:
    given = {"json": {"type": "object"}, "regex": None, "disable_any_whitespace": None}
    assert structured_outputs_of(given) == StructuredOutputsParams(json={"type": "object"})
    assert structured_outputs_of(None) is None
    with pytest.raises(RequestError, match=r"has no field 'jsn'.*json"):
        structured_outputs_of({"jsn": {}})
    with pytest.raises(RequestError, match="must be StructuredOutputsParams or a dict"):
        structured_outputs_of("json")


@pytest.mark.parametrize(
    "fields",
    [
        {"backend": "x-grammar"}, {"backend": ""}, {"backend": 3},
        {"reasoning_parser_plugin": "x.py"}, {"enable_in_reasoning": 1},
        {"disable_any_whitespace": "yes"}, {"unknown": 1},
    ],
)  # fmt: skip
def test_config_names_what_does_not_work(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"structured_outputs_config.*{next(iter(fields))}"):
        StructuredOutputsConfig.of(fields)


def test_config_takes_what_works() -> None:
    assert StructuredOutputsConfig.of(None) == StructuredOutputsConfig.of({"backend": None})
    found = StructuredOutputsConfig.of({"backend": "guidance", "disable_any_whitespace": True})
    assert found.disable_any_whitespace


def test_the_choice_of_a_backend_is_without_effect() -> None:
    assert StructuredOutputsParams(regex="a", backend="xgrammar").kind == "regex"
    with pytest.raises(RequestError, match=r"structured_outputs\.backend='xgramar' is not known"):
        StructuredOutputsParams(regex="a", backend="xgramar")
