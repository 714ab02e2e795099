"""`/v1/completions` and `/v1/chat/completions`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.outputs import RequestOutput
from quire.params import SamplingParams
from quire.server.context import ServerContext
from quire.server.http.event_stream import EventStream
from quire.server.replies.chats import ChatWriter
from quire.server.replies.completions import CompletionWriter
from quire.server.replies.head import ReplyHead
from quire.server.replies.writer import Asked, ReplyWriter
from quire.server.requests.generation import Deadline, Generation, deadline_of
from quire.server.requests.prompts import PreparedPrompt, chat_prompt, completion_prompts
from quire.server.requests.refusals import fields_without_effect, refuse_unsupported
from quire.server.requests.sampling import sampling_params
from quire.server.routes.bodies import context_of, pieced_response, read_body
from quire.server.schema.chat import ChatRequest
from quire.server.schema.completion import CompletionRequest

_PRIORITY_HEADER = "x-vllm-priority"
_TRACE_HEADERS = ("traceparent", "tracestate")
"""W3C Trace Context: which span of the caller's a request belongs to."""


async def completions(http: Request) -> Response | ASGIApp:
    """Continues a prompt, or several."""
    return await _generate(http, CompletionRequest, "cmpl", completion_prompts, _completion_writer)


async def chat_completions(http: Request) -> Response | ASGIApp:
    """Continues a conversation."""
    return await _generate(http, ChatRequest, "chatcmpl", _chat_prompts, _chat_writer)


async def _generate(
    http: Request,
    kind: type[Asked],
    id_prefix: str,
    prepare: Callable[[ServerContext, Asked], Awaitable[list[PreparedPrompt]]],
    make_writer: Callable[
        [ServerContext, Asked, ReplyHead, list[PreparedPrompt]], ReplyWriter[Asked, Any]
    ],
) -> Response | ASGIApp:
    """From a body of that kind to its reply."""
    context = context_of(http)
    request = await read_body(http, kind)
    head = ReplyHead.of(context, http, request, id_prefix)
    engine, deadline = context.live_engine(), deadline_of(http, context.args.request_timeout)
    refuse_unsupported(request)
    if ignored := fields_without_effect(request, context.config.scheduler.policy):
        context.ignored_fields.tell(http, ignored)
    params = sampling_params(context, request)
    engine.requests.check_admission(1)
    prompts = await prepare(context, request)
    writer = make_writer(context, request, head, prompts)
    generation = await _start(context, http, head, request, prompts, params, deadline)
    if request.stream:
        return EventStream(writer.stream(generation, context.pool), generation.close)
    finals = await _finals(http, generation)
    if finals is None:
        return Response()
    size = writer.whole_size(finals)
    return pieced_response(await context.pool.run(size, writer.whole, finals))


async def _chat_prompts(context: ServerContext, request: ChatRequest) -> list[PreparedPrompt]:
    return [await chat_prompt(context, request)]


def _completion_writer(
    context: ServerContext,
    request: CompletionRequest,
    head: ReplyHead,
    prompts: list[PreparedPrompt],
) -> CompletionWriter:
    return CompletionWriter(request, head, prompts, context.loaded_engine().tokenizer)


def _chat_writer(
    context: ServerContext, request: ChatRequest, head: ReplyHead, prompts: list[PreparedPrompt]
) -> ChatWriter:
    tokenizer, role = context.loaded_engine().tokenizer, context.args.response_role
    return ChatWriter(request, head, prompts, tokenizer, role)


async def _start(
    context: ServerContext,
    http: Request,
    head: ReplyHead,
    request: CompletionRequest | ChatRequest,
    prompts: list[PreparedPrompt],
    params: SamplingParams,
    deadline: Deadline,
) -> Generation:
    lengths = [len(prompt.token_ids) for prompt in prompts]
    context.limits.check_reply(request, params, lengths, context.config.model.vocab_size)
    return await Generation.start(
        context,
        prompts,
        params,
        head.id,
        priority=_priority(http, request),
        deadline=deadline,
        trace_headers={name: http.headers[name] for name in _TRACE_HEADERS if name in http.headers},
    )


def _priority(http: Request, request: CompletionRequest | ChatRequest) -> int:
    """Of the header, if it holds a number, as in vLLM; otherwise of the body."""
    with suppress(KeyError, ValueError):
        return int(http.headers[_PRIORITY_HEADER])
    return request.priority or 0


async def _finals(http: Request, generation: Generation) -> list[RequestOutput] | None:
    """The final outputs; None if the client left, which ends the work at once."""
    is_gone = False

    async def watch() -> None:
        nonlocal is_gone
        while (await http.receive())["type"] != "http.disconnect":
            pass
        is_gone = True
        generation.close()

    watcher = asyncio.get_running_loop().create_task(watch())
    try:
        finals = await generation.final_outputs()
        return None if is_gone else finals
    finally:
        generation.close()
        watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watcher
