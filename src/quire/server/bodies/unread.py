"""Looks into a JSON body before it is read: its model and its fields decide how it is read."""

from __future__ import annotations

import msgspec
from starlette.requests import Request

from quire.server.bodies.json_http import (
    BYTES_PER_UNIT,
    DECODE_ERRORS,
    asked_name,
    context_of,
    json_text,
    takes_any_name,
)
from quire.server.endpoint import Gives
from quire.server.fleet.choice import first_that_gives
from quire.server.http.problems import HttpError, decode_problem
from quire.server.served_model import ServedModel


class _Named(msgspec.Struct):
    """Field that names a model."""

    model: str | None = None


async def model_of(request: Request, gives: Gives) -> ServedModel:
    """The model for a request whose body is not read yet: it decides how. Raises as `read_body`."""
    data = await json_text(request)
    try:
        named = await context_of(request).pool.run(
            len(data), msgspec.json.decode, data, type=_Named
        )
    except DECODE_ERRORS as error:
        raise HttpError(decode_problem(error)) from None
    context = context_of(request)
    name = asked_name(request, named.model)
    if not context.knows(name) and takes_any_name(request):
        name = None
    if name or context.fleet is None:
        return context.target(name).model
    return first_that_gives(context.models, gives)


async def field_names(request: Request) -> set[str]:
    """The fields of the request's JSON body that are not null. Raises as `read_body`."""
    pool, data = context_of(request).pool, await json_text(request)
    size = len(data) // BYTES_PER_UNIT
    try:
        if pool.is_small(size):
            values = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
            return {name for name, value in values.items() if bytes(value) != b"null"}
        return await pool.run(size, _large_field_names, data)
    except DECODE_ERRORS as error:
        raise HttpError(decode_problem(error)) from None


def _large_field_names(data: bytes) -> set[str]:
    from quire.server.bodies.json_scan import scan_object  # needs NumPy

    fields = scan_object(data)
    return {field.name for field in fields if data[field.begin : field.end].strip() != b"null"}
