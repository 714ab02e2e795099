"""JSON bodies and replies of the routes: reads a body as the type of a request, whose model is then
loaded, and makes responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import lru_cache
from typing import Any, Generic

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from quire.errors import RequestError, quoted
from quire.server.bodies.lax_values import Body, Decoded, decode_lax
from quire.server.context import ServerContext
from quire.server.endpoint import Endpoint, Gives, route_path
from quire.server.fleet.choice import first_that_gives
from quire.server.fleet.use import MODEL_USE, ModelUse
from quire.server.http.event_stream import PLAIN_FORM, EventStream
from quire.server.http.problems import OLLAMA_PREFIX, HttpError, Problem, decode_problem
from quire.server.json_pieces import joined
from quire.server.served_model import ServedModel

BYTES_PER_UNIT = 64
"""Bytes of a body that are read as fast as one unit of the pool's sizes is done."""
_PIECE_BYTES = 1 << 18
"""Bytes of an answer that are written at once."""
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_encoder = msgspec.json.Encoder()


class BodyDecoder(Generic[Body]):
    """Decodes bodies of one type, whose structs forbid unknown fields."""

    def __init__(self, kind: type[Body]) -> None:
        self.kind = kind
        self._strict = msgspec.json.Decoder(kind)

    def decode(self, data: bytes) -> Decoded[Body]:
        """Raises msgspec.DecodeError, UnicodeDecodeError or RecursionError."""
        try:
            return self._decode(data)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError as error:
            from quire.server.bodies.json_scan import in_its_field  # needs NumPy

            raise in_its_field(data, error) from None

    def _decode(self, data: bytes) -> Decoded[Body]:
        try:
            return Decoded(self._strict.decode(data))
        except msgspec.ValidationError:
            unknown: dict[str, None] = {}
            return Decoded(decode_lax(data, self._strict, self.kind, unknown), unknown)


@lru_cache(maxsize=32)
def body_decoder(kind: Any) -> BodyDecoder[Any]:
    """The decoder of a type."""
    return BodyDecoder(kind)


def context_of(request: Request) -> ServerContext:
    """The server's context."""
    context: ServerContext = request.app.state.context
    return context


def queried_model(request: Request) -> ServedModel:
    """The model of `?model=NAME`, by default the first. Raises HttpError 404."""
    return context_of(request).target(request.query_params.get("model")).model


def is_json(request: Request) -> bool:
    """Whether the headers say that the body is JSON, or say nothing.

    Ollama does not look at the content type, and LiteLLM and `curl -d` send another one. A browser
    adds an Origin, and asks before it sends JSON to another site; so such a request must name it.
    """
    has_page = "origin" in request.headers
    if not has_page and route_path(request.scope).startswith(OLLAMA_PREFIX):
        return True
    media = request.headers.get("content-type", "" if has_page else "application/json")
    media = media.partition(";")[0].strip().lower()
    return media == "application/json" or media.endswith("+json")


async def read_body(request: Request, kind: type[Body], gives: Gives | None = None) -> Body:
    """The request's JSON body as `kind`; the reply will name the fields that `kind` does not have.
    `gives`: what the model must give, if it is not what the route says.

    In a server of several models the model that it names is loaded then, on routes that need it.
    Raises HttpError: 415, or 400 naming the field, and what loading raises; and RequestError for a
    large body that holds too much.
    """
    context, data = context_of(request), await json_text(request)
    size = len(data) // BYTES_PER_UNIT
    try:
        if context.pool.is_small(size):
            decoded: Decoded[Body] = body_decoder(kind).decode(data)
        else:
            decoded = await context.pool.run(size, _decode_large, context, data, kind)
    except DECODE_ERRORS as error:
        raise HttpError(decode_problem(error)) from None
    return await accepted(request, decoded, gives)


async def accepted(request: Request, decoded: Decoded[Body], gives: Gives | None = None) -> Body:
    """The body, once the model that it names is loaded. Raises what loading raises."""
    context = context_of(request)
    if decoded.unknown:
        context.ignored_fields.tell(request, decoded.unknown)
    if Endpoint.of(request).uses_model and hasattr(decoded.body, "model"):
        _name_model(request, decoded.body, gives or Endpoint.of(request).gives)
    use: ModelUse | None = request.scope.get(MODEL_USE)
    if use is not None:
        await use.begin(request, decoded.body)
    await context.resolve(getattr(decoded.body, "model", None))
    return decoded.body


def _name_model(request: Request, body: Any, gives: Gives) -> None:
    """Gives a body that names no model that of the query or, of several, the first that can answer.
    Raises RequestError."""
    context = context_of(request)
    body.model = asked_name(request, body.model)
    if not context.knows(body.model) and takes_any_name(request):
        context.ignored_fields.tell(request, ["model"])
        body.model = None
    if not body.model and context.fleet is not None:
        task = getattr(body, "task", None) if gives == "pooled" else None
        body.model = first_that_gives(context.models, task or gives).names[0]


def takes_any_name(request: Request) -> bool:
    """Whether the one model answers a request that names an unknown one."""
    context = context_of(request)
    is_allowed = Endpoint.of(request).takes_any_name or context.args.allow_any_model_name
    return is_allowed and context.fleet is None and not context.model.adapters.resolvers


def asked_name(request: Request, in_body: str | None) -> str | None:
    """The model's name, from the body or the query. Raises RequestError if these differ."""
    queried = request.query_params.get("model")
    if queried and in_body and queried != in_body:
        raise RequestError(
            f"the query and the body name different models, {quoted(queried)} and "
            f"{quoted(in_body)}; name one",
            parameter="model",
        )
    return in_body or queried


async def json_text(request: Request) -> bytes:
    """The bytes of the body. Raises HttpError 415 unless they are JSON and not compressed."""
    if not is_json(request):
        raise HttpError(Problem(415, "Only the content type application/json is understood."))
    check_encoding(request)
    return await request.body()


def check_encoding(request: Request) -> None:
    """Raises HttpError 415 for a compressed body."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        message = (
            f"The body has the Content-Encoding {quoted(encoding):.80}, but bodies must not be "
            "compressed here: switch the compression of requests off in the client."
        )
        raise HttpError(Problem(415, message, headers={"Accept-Encoding": "identity"}))


def _decode_large(context: ServerContext, data: bytes, kind: type[Body]) -> Decoded[Body]:
    from quire.server.bodies.large import BodyLimits, decode_large  # needs NumPy

    args = context.args
    limits = BodyLimits(
        max_json_values=args.max_json_values,
        max_field_bytes=args.max_field_bytes,
        max_prompts=args.max_prompts,
        max_model_len=context.max_model_len,
    )
    return decode_large(data, kind, body_decoder(kind).decode, limits)


def json_response(value: Any, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(_encoder.encode(value), status, media_type="application/json")


def named_event_stream(
    context: ServerContext, events: AsyncIterator[bytes], close: Callable[[], None] | None = None
) -> EventStream:
    """A reply of events that have names; its end has none. `close`: frees their source; None:
    the source goes on without a reader."""
    return EventStream(
        events, close, form=PLAIN_FORM, keep_alive_s=context.args.sse_keep_alive_interval
    )


def pieced_response(pieces: Sequence[bytes]) -> Response:
    """An answer of JSON text; a large one is written in pieces."""
    if sum(map(len, pieces)) <= _PIECE_BYTES:
        return Response(b"".join(pieces), media_type="application/json")
    return PiecedResponse(pieces)


class PiecedResponse(Response):
    """JSON text, written piece by piece, each when the one before has left the buffer: one large
    write copies all of it at once."""

    media_type = "application/json"

    def __init__(self, pieces: Sequence[bytes]) -> None:
        super().__init__()
        self._pieces = pieces
        self.headers["content-length"] = str(sum(map(len, pieces)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        for piece in joined(self._pieces, _PIECE_BYTES):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
