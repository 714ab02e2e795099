"""Reads the fields of completions and chats that constrain the reply: `structured_outputs`,
`response_format`, and the older names of vLLM.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from quire.errors import RequestError, quoted
from quire.server.requests.fields import ConstraintFields, ResponseFormat
from quire.server.requests.request import AnyRequest, without_nulls
from quire.structured.params import FIELD, KINDS

_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "structural_tag": "structural_tag",
    "guided_whitespace_pattern": "whitespace_pattern",
}
"""Older names of fields of `structured_outputs`."""
_SCHEMAS = frozenset({"json", "structural_tag"})
_PLACES = {
    "json": "response_format.json_schema.schema",
    "structural_tag": "response_format",
    "json_object": "response_format",
    FIELD: "response_format",
}
"""Places in `response_format` of the fields of `structured_outputs`."""


CONSTRAINTS = ("structured_outputs", "response_format", *_GUIDED)
"""Fields of a body that may give a constraint."""


def read_constraint(request: ConstraintFields, asked: AnyRequest) -> None:
    """Sets the constraint on the reply, and the fields that give it: one of `CONSTRAINTS` at least
    is not null. Raises RequestError."""
    for fields in _ways(request):
        known = {} if asked.constraint is None else asked.constraint
        both = known.keys() & fields.keys()
        if differ := [
            name for name in sorted(both) if not _are_same(name, known[name], fields[name])
        ]:
            raise RequestError(
                "You can only use one kind of structured outputs constraint but multiple are "
                f"specified: {', '.join(differ)} is given twice with different values",
                parameter=FIELD,
            )
        asked.constraint = fields | known
    asked.names |= _places(request)


def _are_same(name: str, one: object, other: object) -> bool:
    """Whether two values of a field say the same; each of two equal schemas may be text."""
    text = _as_json(one) if name in _SCHEMAS else None
    return one == other if text is None else text == _as_json(other)


def _as_json(schema: object) -> bytes | None:
    """A text that is the same for equal schemas; None: this is no JSON."""
    try:
        value = msgspec.json.decode(schema) if isinstance(schema, str) else schema
        return msgspec.json.encode(value, order="deterministic")
    except (msgspec.DecodeError, RecursionError, ValueError, TypeError):
        return None


def _ways(request: ConstraintFields) -> Iterator[dict[str, Any]]:
    """The fields that each way gives, of those that are used."""
    if (own := without_nulls(request.structured_outputs)) is not None:
        yield own
    if request.response_format is not None and (fields := _asked_by(request.response_format)):
        yield fields
    if guided := without_nulls({new: getattr(request, old) for old, new in _GUIDED.items()}):
        yield guided


def _places(request: ConstraintFields) -> dict[str, str]:
    """Fields of the body by those of `structured_outputs`, where it does not have them itself."""
    guided = {new: old for old, new in _GUIDED.items() if getattr(request, old) is not None}
    own, wanted = request.structured_outputs or {}, request.response_format
    found: dict[str, str] = {}
    if wanted is not None and all(own.get(kind) is None for kind in KINDS):
        found = dict(_PLACES)
        if wanted.type == "json_object":
            found["json"] = "response_format.schema"
        found |= {name: f"{FIELD}.{name}" for name in own}
    elif request.structured_outputs is None:
        found = dict.fromkeys((FIELD, *KINDS), next(iter(guided.values())))
    found |= guided
    return {name if name == FIELD else f"{FIELD}.{name}": place for name, place in found.items()}


def _asked_by(wanted: ResponseFormat) -> dict[str, Any]:
    """A `response_format` as fields of `structured_outputs`. Raises RequestError."""
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
