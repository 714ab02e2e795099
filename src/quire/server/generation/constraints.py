"""What the fields of `response_format` ask of the engine, and errors in the words of the caller.

Called by the routes. The values themselves are checked by `StructuredOutputsParams`, and where the
engine takes the request.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from quire.errors import RequestError, quoted
from quire.server.generation.request_fields import ConstraintFields, ResponseFormat
from quire.structured.config import check_backend
from quire.structured.params import FIELD, KINDS, StructuredOutputsParams, structured_outputs_of

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
    FIELD: "response_format",
}
"""Where `response_format` has what a field of `structured_outputs` says, or all of it."""


def constraint(request: ConstraintFields) -> StructuredOutputsParams | None:
    """What the reply has to look like; None: like any text. Raises RequestError."""
    check_backend("guided_decoding_backend", request.guided_decoding_backend, _wrong_backend)
    given = [*_ways(request)]
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
    with named_as_asked(request):
        return structured_outputs_of(asked)


@contextmanager
def named_as_asked(request: ConstraintFields) -> Iterator[None]:
    """Errors of `structured_outputs` name the field that this request has in its place."""
    try:
        yield
    except RequestError as error:
        named = as_asked(request, error)
        if named is error:
            raise
        raise named from None


def as_asked(request: ConstraintFields, error: RequestError) -> RequestError:
    """The error as `named_as_asked` raises it."""
    name = error.parameter or ""
    is_ours = name == FIELD or name.startswith(f"{FIELD}.")
    asked = _place_of(request, name.removeprefix(f"{FIELD}.")) if is_ours else None
    if asked is None:
        return error
    message = str(error).replace(name, asked)
    return RequestError(message, parameter=asked, value=error.value)


def _ways(request: ConstraintFields) -> Iterator[dict[str, Any]]:
    """The fields that each way gives, of those that are used."""
    if request.structured_outputs is not None:
        yield {
            name: value for name, value in request.structured_outputs.items() if value is not None
        }
    if request.response_format is not None and (fields := _asked_by(request.response_format)):
        yield fields
    guided = {new: getattr(request, old) for old, new in _GUIDED.items()}
    if guided := {name: value for name, value in guided.items() if value is not None}:
        yield guided


def _place_of(request: ConstraintFields, name: str) -> str | None:
    """The field of this request that says `name`, where it is not in `structured_outputs`."""
    guided = {new: old for old, new in _GUIDED.items() if getattr(request, old) is not None}
    if name in guided:
        return guided[name]
    own = request.structured_outputs or {}
    if request.response_format is None or any(own.get(kind) is not None for kind in KINDS):
        if request.structured_outputs is not None:
            return None
        has_tools = bool(getattr(request, "tools", None))  # their calls are what a grammar holds
        return next(iter(guided.values()), "tools" if has_tools else None)
    if name == "json" and request.response_format.type == "json_object":
        return "response_format.schema"
    return _PLACES.get(name)


def _asked_by(wanted: ResponseFormat) -> dict[str, Any]:
    """As fields of `structured_outputs`. Raises RequestError."""
    if wanted.type == "text":
        return {}
    if wanted.type == "json_object":
        return {"json_object": True} if wanted.schema is None else {"json": wanted.schema}
    if wanted.type == "json_schema":
        if wanted.json_schema is None:
            raise _wrong_format(
                "When response_format type is 'json_schema', the 'json_schema' field must be "
                "provided."
            )
        if wanted.json_schema.schema is None:
            raise _wrong_format("response_format.json_schema must have a schema")
        schema = wanted.json_schema.schema
        return {"json": schema if isinstance(schema, dict) else json.dumps(schema)}
    if wanted.type == "structural_tag":
        names = ("structures", "triggers", "format")
        given = {name: value for name in names if (value := getattr(wanted, name)) is not None}
        return {"structural_tag": json.dumps({"type": wanted.type, **given})}
    raise _wrong_format(
        f"response_format.type {quoted(wanted.type)} is not known; use text, json_object, "
        "json_schema or structural_tag"
    )


def _wrong_format(message: str) -> RequestError:
    return RequestError(message, parameter="response_format")


def _wrong_backend(message: str) -> RequestError:
    return RequestError(message, parameter="guided_decoding_backend")
