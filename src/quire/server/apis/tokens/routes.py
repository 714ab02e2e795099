"""vLLM's routes of tokens in and out: `/inference/v1/generate`, and aborts of its requests."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.errors import RequestError
from quire.server.apis.completions.routes import completion_prompts
from quire.server.apis.completions.schema import CompletionRequest
from quire.server.apis.tokens.schema import AbortTokensRequest, TokensRequest
from quire.server.apis.tokens.writer import TokensWriter, as_completion, fields_without_effect
from quire.server.bodies.json_http import context_of, read_body
from quire.server.context import ServerContext
from quire.server.generation.begin import begin, reply_of
from quire.server.generation.prompts import PreparedPrompt
from quire.server.generation.replies.portions import ReplyHead
from quire.server.generation.run import Generation
from quire.server.http.auth import TENANT_SALT

_PREFIX = "generate-tokens"


async def generate(http: Request) -> Response | ASGIApp:
    """Continues token ids with token ids."""
    request = await read_body(http, TokensRequest)
    context = context_of(http)
    model, mode = context.target(request.model).model, request.output_mode
    tokenizer = model.loaded_engine().tokenizer
    if mode == "text" and tokenizer is None:
        raise RequestError(
            f"output_mode={mode!r} requires a tokenizer, but this server does not load one "
            "(skip_tokenizer_init); use output_mode='tokens'.",
            parameter="output_mode",
        )
    completion = as_completion(request, model.config.model)
    if ignored := fields_without_effect(request):
        context.ignored_fields.tell(http, ignored)
    head = ReplyHead.of(context, http, completion, _PREFIX)

    def make_writer(
        asked: CompletionRequest, head: ReplyHead, _: list[PreparedPrompt]
    ) -> TokensWriter:
        return TokensWriter(asked, head, tokenizer, mode)

    generation, writer = await begin(http, completion, head, completion_prompts, make_writer)
    _can_be_aborted(context, (getattr(http.state, TENANT_SALT, None), head.id), generation)
    return await reply_of(http, request.stream is True, generation, writer)


async def abort_requests(http: Request) -> Response:
    """Ends requests for tokens in flight, by the `request_id`s of their replies: those of this
    API key."""
    body = await read_body(http, AbortTokensRequest)
    context, owner = context_of(http), getattr(http.state, TENANT_SALT, None)
    for request_id in set(body.request_ids):
        for abort in list(context.generating_tokens.get((owner, request_id), ())):
            abort()
    return Response()


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
