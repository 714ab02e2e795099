"""What a reply has to look like, over HTTP: each spelling, and errors that name the caller's own
field."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from quire.structured.params import StructuredOutputsParams
from quire.structured.trial import GrammarTrial

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
    (_format("json_schema", json_schema={"schema": {}}), "response_format.json_schema", "name"),
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
        {"guided_json": SCHEMA, "structured_outputs": {"json": {**SCHEMA, "title": "x"}}},
        "structured_outputs",
        "json is given twice with different values",
    ),
    (
        {"guided_json": "{", "structured_outputs": {"json": {}}},
        "structured_outputs",
        "json is given twice",
    ),
    (
        {"guided_regex": "a", "structured_outputs": {"regex": "b"}},
        "structured_outputs",
        "regex is given twice",
    ),
    (
        {"guided_choice": ["a", "b"], "structured_outputs": {"choice": ["b", "a"]}},
        "structured_outputs",
        "choice is given twice",
    ),
    (
        {"guided_grammar": 'root ::= "a"', "structured_outputs": {"regex": "a"}},
        "structured_outputs",
        "only use one kind",
    ),
    (
        {**_format("json_object"), "structured_outputs": {"regex": "a"}},
        "structured_outputs",
        "only use one kind",
    ),
    (
        {"guided_regex": "a", "guided_decoding_backend": "outline"},
        "guided_decoding_backend",
        "did you mean outlines?",
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


TAG = {"structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}], "triggers": ["<a"]}
RIGHT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"structured_outputs": {"json": SCHEMA}}, {"json": SCHEMA}),
    ({"structured_outputs": {"choice": ["a", "b"], "regex": None}}, {"choice": ["a", "b"]}),
    (
        {"structured_outputs": {"json_object": True, "whitespace_pattern": " ?"}},
        {"json_object": True, "whitespace_pattern": " ?"},
    ),
    (_format("text"), {}),
    (_format("json_object"), {"json_object": True}),
    (_format("json_object", schema=SCHEMA), {"json": SCHEMA}),
    (
        _format("json_schema", json_schema={"name": "a", "schema": SCHEMA, "strict": True}),
        {"json": SCHEMA},
    ),
    (_format("json_schema", json_schema={"name": "a", "schema": True}), {"json": True}),
    (_format("structural_tag", **TAG), {"structural_tag": {"type": "structural_tag", **TAG}}),
    ({"guided_json": SCHEMA}, {"json": SCHEMA}),
    (
        {"guided_json": json.dumps(SCHEMA), "guided_whitespace_pattern": " "},
        {"json": SCHEMA, "whitespace_pattern": " "},
    ),
    ({"guided_regex": "a+", "guided_decoding_backend": "auto"}, {"regex": "a+"}),
    ({"guided_choice": ["a"]}, {"choice": ["a"]}),
    ({"guided_grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
    ({"structural_tag": json.dumps(TAG)}, {"structural_tag": TAG}),
    ({**_format("text"), "guided_choice": ["a"]}, {"choice": ["a"]}),
    *(
        ({old: value, "structured_outputs": {new: value, **more}, **other}, {new: value, **more})
        for old, new, value, more, other in (
            ("guided_json", "json", SCHEMA, {}, {}),
            ("guided_regex", "regex", "a+", {}, {}),
            ("guided_choice", "choice", ["a"], {}, {}),
            ("guided_grammar", "grammar", 'root ::= "a"', {}, {}),
            ("guided_whitespace_pattern", "whitespace_pattern", " ?", {"json": SCHEMA}, {}),
            ("guided_json", "json", SCHEMA, {}, _format("json_object", schema=SCHEMA)),
        )
    ),
    ({"guided_json": json.dumps(SCHEMA), "structured_outputs": {"json": SCHEMA}}, {"json": SCHEMA}),
    (
        {
            "structural_tag": json.dumps({**TAG, "type": "structural_tag"}),
            **_format("structural_tag", **TAG),
        },
        {"structural_tag": {"type": "structural_tag", **TAG}},
    ),
]


@pytest.mark.parametrize("body", [CHAT, TEXT], ids=["chat", "completion"])
@pytest.mark.parametrize(("fields", "asked"), RIGHT)
def test_every_spelling_reaches_the_engine(
    harness: Harness, body: dict[str, Any], fields: dict[str, Any], asked: dict[str, Any]
) -> None:
    path = "/v1/chat/completions" if body is CHAT else "/v1/completions"
    reply = harness.post(path, {**body, **fields})
    assert reply.status_code == 200, reply.text
    assert "x-quire-ignored-fields" not in reply.headers
    rendered = harness.post(f"{path}/render", {**body, **fields}).json()
    rendered = rendered[0] if isinstance(rendered, list) else rendered
    found = rendered["sampling_params"].get("structured_outputs", {})
    parsed = {"json", "structural_tag"} & found.keys()
    assert {**found, **{name: json.loads(found[name]) for name in parsed}} == asked


def test_a_grammar_is_tried_on_a_thread(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    real = GrammarTrial.checked

    def checked(self: GrammarTrial, spec: StructuredOutputsParams) -> StructuredOutputsParams:
        threads.append(threading.current_thread().name)
        return real(self, spec)

    monkeypatch.setattr(GrammarTrial, "checked", checked)
    fields = {"structured_outputs": {"regex": "a"}}
    for path in ("/v1/completions", "/v1/completions/render"):
        assert harness.post(path, {**TEXT, **fields}).status_code == 200
    assert all(name.startswith("quire-work") for name in threads)
    assert len(threads) == 2
