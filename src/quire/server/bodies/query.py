"""Reads the parameters in a URL's query, as vLLM's routes without a body take them."""

from __future__ import annotations

import re
from typing import Any, TypeVar, get_origin

import msgspec
from starlette.requests import Request

from quire.errors import quoted
from quire.server.apis.endpoint import Endpoint
from quire.server.http.problems import HttpError, Problem

Query = TypeVar("Query", bound=msgspec.Struct)

_WHERE = re.compile(r" - at `\$\.(\w{1,100})[^`]{0,100}`$")


def read_query(request: Request, kind: type[Query]) -> Query:
    """The query as `kind`, whose fields are numbers, booleans, texts, or lists of texts.

    Raises HttpError 400 for an unknown parameter, and for a value that does not fit.
    """
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    takes_model = Endpoint.of(request).takes_model_in_query
    for name, value in request.query_params.multi_items():
        if name == "model" and takes_model:
            continue
        if name.endswith("[]") and name[:-2] in fields:
            name = name[:-2]  # a list as some clients write it
        if name not in fields:
            known = " and ".join(fields) or "no parameters"
            raise _problem(name, f"Unknown query parameter {quoted(name)}: this route has {known}.")
        if get_origin(fields[name].type) is list:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise _problem(name, f"The query has {name} more than once; give it once.")
        else:
            values[name] = value
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        found = _WHERE.search(str(error))
        name = found.group(1) if found else ""
        works = _what_works(msgspec.json.schema(fields[name].type)) if name in fields else ""
        raise _problem(name, f"{name}={quoted(values.get(name))} is refused{works}.") from None


def _problem(name: str, message: str) -> HttpError:
    param = f"query.{name[:100]}" if name else None
    return HttpError(Problem(400, message, param=param, type="Bad Request"))


def _what_works(schema: dict[str, Any]) -> str:
    """The end of a message: the values that a parameter takes."""
    if schema.get("type") == "array":
        return _what_works(schema["items"])
    if "enum" in schema:
        return f": it is one of {', '.join(sorted(schema['enum']))}"
    if schema.get("type") == "integer":
        return f": it is a whole number from {schema['minimum']} to {schema['maximum']}"
    return {"boolean": ": it is true or false"}.get(str(schema.get("type")), "")
