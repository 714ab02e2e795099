"""`/inference/v1/generate`: token ids in, token ids out; and the reading of its bodies."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.config import ModelConfig
from quire.config.checkpoint.model_files import MODEL_SAMPLING_KEYS
from quire.errors import RequestError
from quire.param_checks import checked_json
from quire.params import NOT_YET, SamplingParams
from quire.server.apis.tokens.schema import (
    AbortTokensRequest,
    TokenSampling,
    TokensChunk,
    TokensReply,
    TokensRequest,
)
from quire.server.apis.tokens.writing import TokensWriter
from quire.server.bodies.json_http import context_of
from quire.server.context import ServerContext
from quire.server.endpoint import BAD_BODY
from quire.server.generation.begin import begin, reply_of
from quire.server.generation.reply import ReplyHead
from quire.server.generation.run import Generation
from quire.server.http.auth import TENANT_SALT
from quire.server.requests.fields import TRANSFERS
from quire.server.requests.limits import refuse_other_values
from quire.server.requests.reading import (
    SAME_NAME,
    given,
    read_logprobs,
    read_prompt_logprobs,
    read_stream_options,
)
from quire.server.requests.request import AnyRequest, ReplyOptions, TextRequest, without_nulls
from quire.server.requests.texts import TextPrompts
from quire.server.routing import Routes

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "features": (None, {}),
    "content_parts": (None, []),
    **dict.fromkeys(TRANSFERS, (None, {})),
}
"""Unsupported fields with their neutral values."""
_DEFAULTS = SamplingParams()


def read_tokens(request: TokensRequest, model: ModelConfig) -> TextRequest[TextPrompts]:
    """Raises RequestError for what is not supported, or contradicts itself."""
    _refuse(request)
    body = request.sampling_params
    sampling = given(body, SAME_NAME & {*body.__struct_fields__})
    for name in MODEL_SAMPLING_KEYS:  # one that is absent would be the model's
        sampling.setdefault(name, getattr(_DEFAULTS, name))
    if (extra := checked_json(body.extra_args, "vllm_xargs")) is not None:
        sampling["extra_args"] = extra
    reply = ReplyOptions(
        stream=request.stream is True,
        n=body.n or 1,
        has_prompt_logprobs=body.prompt_logprobs is not None,
        has_token_ids=request.return_token_ids is True,
        repeats_prompt=True,
    )
    read_stream_options(reply, request.stream_options)
    asked = TextRequest.of(
        request,
        TextPrompts(request.token_ids),
        sampling=sampling,
        max_tokens=body.max_tokens,
        constraint=without_nulls(body.structured_outputs),
        reply=reply,
    )
    if asked.max_tokens is None:
        own = model.default_sampling_params.get("max_tokens")
        asked.max_tokens = model.max_model_len if own is None else own
    num_top = body.logprobs
    if body.logprob_token_ids and num_top is None:
        num_top = len(body.logprob_token_ids)
    read_logprobs(asked, num_top)
    read_prompt_logprobs(asked, body.prompt_logprobs)
    if request.reasoning_parser_kwargs:
        asked.ignored.append("reasoning_parser_kwargs")
    if body.skip_reading_prefix_cache:
        asked.ignored.append("sampling_params.skip_reading_prefix_cache")
    return asked


def _refuse(request: TokensRequest) -> None:
    refuse_other_values(request, _NEUTRAL)
    asked = request.sampling_params
    refuse_other_values(asked, NOT_YET)
    if asked.detokenize is False:
        _refuse_text(request, asked)


def _refuse_text(request: TokensRequest, asked: TokenSampling) -> None:
    """Raises RequestError if the request disables detokenization and uses a feature that needs
    it."""
    if request.output_mode == "text":
        raise RequestError(
            "output_mode='text' requires sampling_params.detokenize to be true; leave it out.",
            parameter="detokenize",
        )
    if asked.stop:
        raise RequestError(
            "stop strings are only supported when detokenize is True; leave it out, or use "
            "stop_token_ids.",
            parameter="stop",
        )


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
