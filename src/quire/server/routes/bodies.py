"""Reading typed bodies, and answering with typed ones."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.server.context import ServerContext
from quire.server.http.problems import HttpError, Problem, decode_problem

Body = TypeVar("Body")

_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_encoder = msgspec.json.Encoder()


def context_of(request: Request) -> ServerContext:
    """The server's context."""
    context: ServerContext = request.app.state.context
    return context


async def read_body(request: Request, kind: type[Body]) -> Body:
    """The request's JSON body as `kind`. Raises HttpError: 415, or 400 naming the field."""
    media = request.headers.get("content-type", "application/json")
    media = media.partition(";")[0].strip().lower()
    if media != "application/json" and not media.endswith("+json"):
        raise HttpError(Problem(415, "Only the content type application/json is understood."))
    data = await request.body()
    try:
        body: Body = _decoder(kind).decode(data)  # type: ignore[arg-type]
    except _DECODE_ERRORS as error:
        raise HttpError(decode_problem(error)) from None
    return body


@lru_cache(maxsize=32)
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def json_response(value: Any, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(_encoder.encode(value), status, media_type="application/json")
