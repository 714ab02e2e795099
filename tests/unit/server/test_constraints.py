"""What a reply has to look like, over HTTP: each spelling, and errors that name the caller's own
field."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Harness

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
TEXT = {"prompt": "A", "max_tokens": 1}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
BAD = {"not": {}}


def _format(kind: str, **fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": kind, **fields}}


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"structured_outputs": {}}, "structured_outputs", "You must use one kind"),
    ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs", "only use one"),
    ({"structured_outputs": {"jsn": SCHEMA}}, "structured_outputs.jsn", "has no field 'jsn'"),
    ({"structured_outputs": {"json": BAD}}, "structured_outputs.json", "Unimplemented keys"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "is not valid JSON"),
    ({"structured_outputs": {"json": 3}}, "structured_outputs.json", "must be a JSON schema"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "unclosed group"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "an empty list"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object", "True if"),
    ({"structured_outputs": {"grammar": "x"}}, "structured_outputs.grammar", "neither in Lark"),
    ({"structured_outputs": [1]}, "structured_outputs", ""),
    (_format("xml"), "response_format", "use text, json_object, json_schema or structural_tag"),
    (_format("json_schema"), "response_format", "the 'json_schema' field must be provided"),
    (_format("json_schema", json_schema={"name": "a"}), "response_format", "must have a schema"),
    (_format("json_schema", json_schema={"schema": {}}), "response_format", "name"),
    (
        _format("json_schema", json_schema={"name": "a", "schema": BAD}),
        "response_format.json_schema.schema",
        "response_format.json_schema.schema does not work: Unimplemented keys",
    ),
    (_format("json_object", schema=BAD), "response_format.schema", "Unimplemented keys"),
    (_format("structural_tag"), "response_format", "needs either structures and triggers"),
    (
        _format("structural_tag", structures=[{"begin": "a", "end": "b"}], triggers=["x"]),
        "response_format",
        "Trigger 'a' not found",
    ),
    ({"guided_json": BAD}, "guided_json", "guided_json does not work: Unimplemented keys"),
    ({"guided_regex": "("}, "guided_regex", "unclosed group"),
    ({"guided_choice": []}, "guided_choice", "cannot be an empty list"),
    ({"guided_grammar": " "}, "guided_grammar", "guided_grammar cannot be an empty string"),
    ({"guided_grammar": 3}, "guided_grammar", ""),
    ({"structural_tag": "x"}, "structural_tag", "is not valid JSON"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "must use one kind"),
    ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_json", "only use one kind"),
    (
        {"guided_json": SCHEMA, "structured_outputs": {"json": SCHEMA}},
        "structured_outputs",
        "json is given twice",
    ),
    (
        {**_format("json_object"), "structured_outputs": {"regex": "a"}},
        "structured_outputs",
        "only use one kind",
    ),
    (
        {"guided_regex": "a", "guided_decoding_backend": "outlines"},
        "guided_decoding_backend",
        "use 'auto' or 'guidance'",
    ),
]


@pytest.mark.parametrize("body", [CHAT, TEXT], ids=["chat", "completion"])
@pytest.mark.parametrize(("fields", "parameter", "message"), WRONG)
def test_a_wrong_constraint_is_a_bad_request_that_names_the_field(
    harness: Harness, body: dict[str, Any], fields: dict[str, Any], parameter: str, message: str
) -> None:
    path = "/v1/chat/completions" if body is CHAT else "/v1/completions"
    reply = harness.post(path, {**body, **fields})
    error = reply.json()["error"]
    assert reply.status_code == 400, error
    assert message in error["message"]
    assert error["param"] == parameter
