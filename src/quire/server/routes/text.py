"""The tokenizer and the render endpoints: what the engine would see."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.errors import RequestError
from quire.frontend.arguments import located
from quire.params import SamplingParams
from quire.server.context import ServerContext
from quire.server.replies.head import ReplyHead
from quire.server.replies.json_pieces import ITEMS_AT_ONCE, JsonPieces
from quire.server.requests.beams.fields import refuse_with_beams
from quire.server.requests.generation import params_work
from quire.server.requests.prompts import PreparedPrompt, chat_prompt, completion_prompts, encode
from quire.server.requests.refusals import refuse_unsupported
from quire.server.requests.room import params_in_room
from quire.server.requests.sampling import check_lists, lists_work, sampling_params
from quire.server.routes.bodies import (
    context_of,
    json_response,
    pieced_response,
    read_body,
)
from quire.server.schema.chat import ChatRequest
from quire.server.schema.completion import CompletionRequest
from quire.server.schema.constraints import named_as_asked
from quire.server.schema.service import (
    DetokenizeRequest,
    DetokenizeResponse,
    RenderedPrompt,
    TokenizeRequest,
    TokenizeResponse,
)
from quire.server.work_pool import check_wanted

_PATHS = ("vocab_file", "merges_file")
"""Fields of a tokenizer's configuration that name files."""


async def tokenize(http: Request) -> Response:
    """The token ids of a text or a conversation."""
    context = context_of(http)
    request = await read_body(http, TokenizeRequest)
    context.served_name(request.model)
    context.tokenizer()  # refuses where there is none
    if (request.prompt is None) == (request.messages is None):
        raise RequestError("give either prompt or messages", parameter="prompt")
    if request.prompt is not None:
        text, special = request.prompt, request.add_special_tokens is not False
        context.limits.check_text("prompt", len(text))
        token_ids = await context.pool.run(
            len(text), encode, context, text, special, must_fit=False
        )
    else:
        token_ids = (await chat_prompt(context, request)).token_ids
    return pieced_response(
        await context.pool.run(len(token_ids), _tokenized, context, request, token_ids)
    )


def _tokenized(
    context: ServerContext, request: TokenizeRequest, token_ids: list[int]
) -> list[bytes]:
    pieces, token_strs = JsonPieces(), None
    if request.return_token_strs:
        id_to_token, strs = context.tokenizer().id_to_token, pieces.new_list()
        for begin in range(0, len(token_ids), ITEMS_AT_ONCE):
            ids = token_ids[begin : begin + ITEMS_AT_ONCE]
            strs.add([id_to_token(token_id) or "" for token_id in ids])
        token_strs = strs.encoded()
    response = TokenizeResponse(
        count=len(token_ids),
        max_model_len=context.config.model.max_model_len,
        tokens=pieces.new_list(token_ids).encoded(),
        token_strs=token_strs,
    )
    return pieces.encode(response)


async def detokenize(http: Request) -> Response:
    """The text of some token ids."""
    context = context_of(http)
    request = await read_body(http, DetokenizeRequest)
    context.served_name(request.model)
    size = len(request.tokens)
    return json_response(await context.pool.run(size, _detokenized, context, request.tokens))


def _detokenized(context: ServerContext, token_ids: list[int]) -> DetokenizeResponse:
    vocab_size, limit = context.config.model.vocab_size, context.config.model.max_model_len
    tokenizer = context.tokenizer()
    if len(token_ids) > limit:
        raise RequestError(
            f"{len(token_ids)} tokens are more than max_model_len {limit}; "
            "send them in several requests",
            parameter="tokens",
        )
    if token_ids and max(token_ids) >= vocab_size:
        raise RequestError(
            f"Token id {max(token_ids)} is out of vocabulary: ids are from 0 to {vocab_size - 1}",
            parameter="tokens",
        )
    text = tokenizer.decode(token_ids, skip_special_tokens=False)
    return DetokenizeResponse(prompt=text)


async def tokenizer_info(http: Request) -> Response:
    """The tokenizer's configuration, as tokenizer_config.json has it."""
    context = context_of(http)
    config = context.tokenizer().config
    info = {name: _plain(config[name]) for name in config if name not in _PATHS}
    info.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
    template = context.config.model.chat_template
    if template is not None:  # the server's own takes the place of the checkpoint's
        info["chat_template"] = template
    return json_response(info)


def _plain(value: Any) -> Any:
    """A value of the configuration, with special tokens as their texts."""
    if isinstance(value, dict):
        if isinstance(value.get("content"), str):
            return value["content"]
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


async def render_completion(http: Request) -> Response:
    """What a completion request would run, prompt by prompt."""
    context = context_of(http)
    request = await read_body(http, CompletionRequest)
    head = ReplyHead.of(context, http, request, "cmpl")
    refuse_unsupported(request)
    _refuse_beams(request)
    params = await context.pool.run(lists_work(request), sampling_params, context, request)
    prompts = await completion_prompts(context, request)
    check_lists(params, len(prompts))
    size = sum(32 + len(prompt.token_ids) for prompt in prompts)
    size += params_work(params, len(prompts))
    return pieced_response(
        await context.pool.run(size, _rendered_list, context, head, request, prompts, params)
    )


def _rendered_list(
    context: ServerContext,
    head: ReplyHead,
    request: CompletionRequest,
    prompts: list[PreparedPrompt],
    params: SamplingParams,
) -> list[bytes]:
    rendered = JsonPieces().new_list()
    for index, prompt in enumerate(prompts):
        with located("prompt", index, len(prompts)):
            rendered.add([_rendered(context, head, request, prompt, params)])
        check_wanted()
    return list(rendered.pieces())


async def render_chat(http: Request) -> Response:
    """What a chat request would run."""
    return await rendered_chat(http, await read_body(http, ChatRequest))


async def rendered_chat(http: Request, request: ChatRequest) -> Response:
    """What a chat would run, as a reply. Raises RequestError."""
    context = context_of(http)
    head = ReplyHead.of(context, http, request, "chatcmpl")
    refuse_unsupported(request)
    _refuse_beams(request)
    params = await context.pool.run(lists_work(request), sampling_params, context, request)
    prompt = await chat_prompt(context, request)
    size = len(prompt.token_ids) + params_work(params)
    rendered = await context.pool.run(size, _rendered, context, head, request, prompt, params)
    return json_response(rendered)


def _refuse_beams(request: CompletionRequest | ChatRequest) -> None:
    if request.use_beam_search:
        raise RequestError(
            "Beam search is not supported by the render endpoint", parameter="use_beam_search"
        )
    refuse_with_beams(request)


def _rendered(
    context: ServerContext,
    head: ReplyHead,
    request: CompletionRequest | ChatRequest,
    prompt: PreparedPrompt,
    params: SamplingParams,
) -> RenderedPrompt:
    """Goes through the same checks as a request that runs."""
    max_model_len = context.config.model.max_model_len
    params = params_in_room(params, len(prompt.token_ids), max_model_len)
    processor = context.loaded_engine().input_processor
    priority = request.priority or 0
    with named_as_asked(request):
        settled = processor.process(head.id, prompt.for_engine(), params, priority=priority)
    values: dict[str, Any] = msgspec.to_builtins(settled.params)
    plain = {name: value for name, value in values.items() if not name.startswith("_")}
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
