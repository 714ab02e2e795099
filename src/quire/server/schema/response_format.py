"""How a request says what its reply has to look like: its fields, and what they ask of the engine.

There are three ways: OpenAI's `response_format` with the additions of vLLM and llama-server, vLLM's
`structured_outputs`, and the `guided_...` fields of earlier versions of vLLM.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from quire.errors import RequestError, quoted
from quire.structured.config import check_backend
from quire.structured.params import (
    FIELD,
    KINDS,
    StructuredOutputsParams,
    structured_outputs_of,
)

_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "structural_tag": "structural_tag",
    "guided_whitespace_pattern": "whitespace_pattern",
}
"""Older names of fields of `structured_outputs`."""
_PLACES = {
    "json": "response_format.json_schema.schema",
    "structural_tag": "response_format",
    "json_object": "response_format",
}
"""Where `response_format` has what a field of `structured_outputs` says."""


class JsonSchemaFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A JSON schema for the reply."""

    name: str
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None
    """Accepted: the schema always holds."""


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How the reply is constrained: `text` not at all, `json_object`, `json_schema`, or
    `structural_tag`."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    schema: dict[str, Any] | None = None
    """Of `json_object`, as llama-server has it."""
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None
    """A structural tag is either `structures` and `triggers`, or a `format`."""

    def asks(self) -> dict[str, Any]:
        """As fields of `structured_outputs`. Raises RequestError."""
        if self.type == "text":
            return {}
        if self.type == "json_object":
            return {"json_object": True} if self.schema is None else {"json": self.schema}
        if self.type == "json_schema":
            if self.json_schema is None:
                raise _error(
                    "When response_format type is 'json_schema', the 'json_schema' field must be "
                    "provided."
                )
            if self.json_schema.schema is None:
                raise _error("response_format.json_schema must have a schema")
            schema = self.json_schema.schema
            return {"json": schema if isinstance(schema, dict) else json.dumps(schema)}
        if self.type == "structural_tag":
            names = ("structures", "triggers", "format")
            given = {name: value for name in names if (value := getattr(self, name)) is not None}
            return {"structural_tag": json.dumps({"type": self.type, **given})}
        raise _error(
            f"response_format.type {quoted(self.type)} is not known; use text, json_object, "
            "json_schema or structural_tag"
        )


class ConstraintFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields of completions and chats that constrain the reply."""

    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    """One of `json`, `regex`, `choice`, `grammar`, `json_object` and `structural_tag`, which the
    reply follows, with vLLM's options."""
    guided_json: dict[str, Any] | str | None = None
    """Older names of the fields of `structured_outputs`."""
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structural_tag: str | None = None
    guided_whitespace_pattern: str | None = None
    guided_decoding_backend: str | None = None
    """`auto` or `guidance`: there is one."""

    def constraint(self) -> StructuredOutputsParams | None:
        """What the reply has to look like; None: like any text. Raises RequestError."""
        check_backend("guided_decoding_backend", self.guided_decoding_backend, _error)
        given = [*self._ways()]
        if not given:
            return None
        asked: dict[str, Any] = {}
        for fields in given:
            if both := asked.keys() & fields.keys():
                raise RequestError(
                    "You can only use one kind of structured outputs constraint but multiple are "
                    f"specified: {', '.join(sorted(both))} is given twice",
                    parameter=FIELD,
                )
            asked |= fields
        with self.named_as_asked():
            return structured_outputs_of(asked)

    @contextmanager
    def named_as_asked(self) -> Iterator[None]:
        """Errors of `structured_outputs` name the field that this request has in its place."""
        try:
            yield
        except RequestError as error:
            name = error.parameter or ""
            is_ours = name == FIELD or name.startswith(f"{FIELD}.")
            asked = self._place_of(name.removeprefix(f"{FIELD}.")) if is_ours else None
            if asked is None:
                raise
            message = str(error).replace(name, asked)
            raise RequestError(message, parameter=asked, value=error.value) from None

    def _ways(self) -> Iterator[dict[str, Any]]:
        """The fields that each way gives, of those that are used."""
        if self.structured_outputs is not None:
            yield {
                name: value for name, value in self.structured_outputs.items() if value is not None
            }
        if self.response_format is not None and (fields := self.response_format.asks()):
            yield fields
        guided = {new: getattr(self, old) for old, new in _GUIDED.items()}
        if guided := {name: value for name, value in guided.items() if value is not None}:
            yield guided

    def _place_of(self, name: str) -> str | None:
        """The field of this request that says `name`, where it is not in `structured_outputs`."""
        guided = {new: old for old, new in _GUIDED.items() if getattr(self, old) is not None}
        if name in guided:
            return guided[name]
        own = self.structured_outputs or {}
        if self.response_format is None or any(own.get(kind) is not None for kind in KINDS):
            return next(iter(guided.values()), None) if self.structured_outputs is None else None
        if name == "json" and self.response_format.type == "json_object":
            return "response_format.schema"
        return _PLACES.get(name)


def _error(message: str) -> RequestError:
    name = "guided_decoding_backend" if message.startswith("guided") else "response_format"
    return RequestError(message, parameter=name)
