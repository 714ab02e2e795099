"""`/tokenize`, `/detokenize` and the render endpoints: what the engine would see."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.errors import RequestError
from quire.params import SamplingParams
from quire.server.context import ServerContext
from quire.server.replies.head import ReplyHead
from quire.server.requests.prompts import PreparedPrompt, chat_prompt, completion_prompts, encode
from quire.server.requests.refusals import refuse_unsupported
from quire.server.requests.sampling import check_room, sampling_params
from quire.server.routes.bodies import context_of, json_response, read_body
from quire.server.schema.chat import ChatRequest
from quire.server.schema.completion import CompletionRequest
from quire.server.schema.service import (
    DetokenizeRequest,
    DetokenizeResponse,
    RenderedPrompt,
    TokenizeRequest,
    TokenizeResponse,
)


async def tokenize(http: Request) -> Response:
    """The token ids of a text or a conversation."""
    context = context_of(http)
    request = await read_body(http, TokenizeRequest)
    context.served_name(request.model)
    tokenizer = context.tokenizer()
    if (request.prompt is None) == (request.messages is None):
        raise RequestError("give either prompt or messages", parameter="prompt")
    if request.prompt is not None:
        wants_special = request.add_special_tokens is not False
        token_ids = await encode(context, request.prompt, wants_special, must_fit=False)
    else:
        token_ids = (await chat_prompt(context, request)).token_ids
    token_strs = None
    if request.return_token_strs:
        token_strs = [tokenizer.id_to_token(token_id) or "" for token_id in token_ids]
    return json_response(
        TokenizeResponse(
            count=len(token_ids),
            max_model_len=context.config.model.max_model_len,
            tokens=token_ids,
            token_strs=token_strs,
        )
    )


async def detokenize(http: Request) -> Response:
    """The text of some token ids."""
    context = context_of(http)
    request = await read_body(http, DetokenizeRequest)
    context.served_name(request.model)
    tokenizer = context.tokenizer()
    vocab_size, limit = context.config.model.vocab_size, context.config.model.max_model_len
    if len(request.tokens) > limit:
        raise RequestError(
            f"{len(request.tokens)} tokens are more than max_model_len {limit}; "
            "send them in several requests",
            parameter="tokens",
        )
    if request.tokens and max(request.tokens) >= vocab_size:
        raise RequestError(
            f"Token id {max(request.tokens)} is out of vocabulary: ids are from 0 to "
            f"{vocab_size - 1}",
            parameter="tokens",
        )
    text = tokenizer.decode(request.tokens, skip_special_tokens=False)
    return json_response(DetokenizeResponse(prompt=text))


async def render_completion(http: Request) -> Response:
    """What a completion request would run, prompt by prompt."""
    context = context_of(http)
    request = await read_body(http, CompletionRequest)
    head = ReplyHead.of(context, http, request, "cmpl")
    refuse_unsupported(request)
    params = _params(context, request)
    prompts = await completion_prompts(context, request)
    return json_response([_rendered(context, head, request, one, params) for one in prompts])


async def render_chat(http: Request) -> Response:
    """What a chat request would run."""
    context = context_of(http)
    request = await read_body(http, ChatRequest)
    head = ReplyHead.of(context, http, request, "chatcmpl")
    refuse_unsupported(request)
    params = _params(context, request)
    prompt = await chat_prompt(context, request)
    return json_response(_rendered(context, head, request, prompt, params))


def _params(context: ServerContext, request: CompletionRequest | ChatRequest) -> SamplingParams:
    defaults = dict(context.config.model.default_sampling_params)
    return sampling_params(request, defaults, context.args)


def _rendered(
    context: ServerContext,
    head: ReplyHead,
    request: CompletionRequest | ChatRequest,
    prompt: PreparedPrompt,
    params: SamplingParams,
) -> RenderedPrompt:
    """Goes through the same checks as a request that runs."""
    check_room(params, len(prompt.token_ids), context.config.model.max_model_len)
    processor = context.loaded_engine().input_processor
    priority = request.priority or 0
    settled = processor.process(head.id, prompt.for_engine(), params, priority=priority)
    plain: dict[str, Any] = msgspec.to_builtins(settled.params)
    return RenderedPrompt(
        request_id=head.id,
        model=head.model,
        prompt=prompt.text,
        token_ids=prompt.token_ids,
        sampling_params=plain,
        cache_salt=request.cache_salt,
        priority=priority,
        stream=request.stream is True,
    )
