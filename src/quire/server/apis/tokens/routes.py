"""`/inference/v1/generate`: token ids in, token ids out."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.errors import RequestError
from quire.server.apis.tokens.reading import read_tokens
from quire.server.apis.tokens.schema import (
    AbortTokensRequest,
    TokensChunk,
    TokensReply,
    TokensRequest,
)
from quire.server.apis.tokens.writing import TokensWriter
from quire.server.bodies.json_http import context_of
from quire.server.context import ServerContext
from quire.server.generation.begin import begin, reply_of
from quire.server.generation.portions import ReplyHead
from quire.server.generation.run import Generation
from quire.server.http.auth import TENANT_SALT
from quire.server.requests.request import AnyRequest
from quire.server.routing import BAD_BODY, Routes

_PREFIX = "generate-tokens"


ROUTES = Routes("generation")


@ROUTES.on("POST", "/inference/v1/generate", response=TokensReply, stream=TokensChunk)
async def generate(http: Request, request: TokensRequest) -> Response | ASGIApp:
    """Continues token ids with token ids."""
    context = context_of(http)
    model, mode = context.target(request.model).model, request.output_mode
    tokenizer = model.loaded_engine().tokenizer
    if mode == "text" and tokenizer is None:
        raise RequestError(
            f"output_mode={mode!r} requires a tokenizer, but this server does not load one "
            "(skip_tokenizer_init); use output_mode='tokens'.",
            parameter="output_mode",
        )
    asked = read_tokens(request, model.config.model)
    head = ReplyHead.of(context, http, asked, _PREFIX)

    def make_writer(asked: AnyRequest, head: ReplyHead, _: object) -> TokensWriter:
        return TokensWriter(asked, head, tokenizer, mode)

    generation, writer = await begin(http, asked, head, make_writer)
    _can_be_aborted(context, (getattr(http.state, TENANT_SALT, None), head.id), generation)
    return await reply_of(http, request.stream is True, generation, writer)


@ROUTES.on("POST", "/inference/v1/abort_requests", errors=BAD_BODY)
async def abort_requests(http: Request, body: AbortTokensRequest) -> None:
    """Ends requests for tokens in flight, by the `request_id`s of their replies: those of this
    API key."""
    context, owner = context_of(http), getattr(http.state, TENANT_SALT, None)
    for request_id in set(body.request_ids):
        for abort in list(context.generating_tokens.get((owner, request_id), ())):
            abort()


def _can_be_aborted(
    context: ServerContext, key: tuple[str | None, str], generation: Generation
) -> None:
    """Keeps a generation under its id until it ends. Callers may use an id several times."""
    aborts = context.generating_tokens.setdefault(key, set())
    aborts.add(generation.abort)

    def forget() -> None:
        aborts.discard(generation.abort)
        if not aborts:
            context.generating_tokens.pop(key, None)

    generation.on_close(forget)
