"""`/v1/completions`, `/v1/chat/completions`, its batches, and SageMaker's `/invocations`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.errors import RequestError, quoted
from quire.metrics.load_report import LOAD_FORMAT_HEADER, LOAD_HEADER, load_report
from quire.outputs import RequestOutput
from quire.params import SamplingParams
from quire.server.context import ServerContext
from quire.server.http.auth import TENANT_SALT
from quire.server.http.event_stream import EventStream
from quire.server.replies.chats import BatchChatWriter, ChatWriter
from quire.server.replies.completions import CompletionWriter
from quire.server.replies.head import ReplyHead
from quire.server.replies.writer import Asked, ReplyWriter
from quire.server.requests.beams.fields import (
    beam_sampling_params,
    beam_search_params,
    fields_without_beams,
    refuse_with_beams,
)
from quire.server.requests.chats.plan_reply import plan_reply
from quire.server.requests.chats.reply_form import set_reply_form
from quire.server.requests.chats.tool_use import tool_use
from quire.server.requests.generation import Deadline, Generation, deadline_of
from quire.server.requests.prompts import PreparedPrompt, chat_prompt, completion_prompts
from quire.server.requests.refusals import fields_without_effect, refuse_unsupported
from quire.server.requests.sampling import check_lists, lists_work, sampling_params
from quire.server.routes.bodies import context_of, field_names, pieced_response, read_body
from quire.server.routes.conversations import conversations_of
from quire.server.schema.chat import BatchChatRequest, ChatRequest
from quire.server.schema.completion import CompletionRequest
from quire.server.schema.constraints import as_asked, named_as_asked
from quire.server.schema.service import SessionRequest
from quire.server.work_pool import WorkPool

Writer = TypeVar("Writer")
Result = TypeVar("Result")
_Prepare = Callable[[ServerContext, Asked], Awaitable[list[PreparedPrompt]]]
_PRIORITY_HEADER = "x-vllm-priority"
_TRACE_HEADERS = ("traceparent", "tracestate")
"""W3C Trace Context: which span of the caller's a request belongs to."""
_ADAPTER_HEADER = "x-amzn-sagemaker-adapter-identifier"


async def completions(http: Request) -> Response | ASGIApp:
    """Continues a prompt, or several."""
    request = await read_body(http, CompletionRequest)
    return await _generate(http, request, "cmpl", completion_prompts, _completion_writer)


async def chat_completions(http: Request) -> Response | ASGIApp:
    """Continues a conversation."""
    request = await read_body(http, ChatRequest)
    return await _generate(http, request, "chatcmpl", chat_prompts, _chat_writer)


async def chat_completions_batch(http: Request) -> Response:
    """Continues several conversations, each by one choice of the reply."""
    batch = await read_body(http, BatchChatRequest)
    requests = conversations_of(context_of(http), batch)

    async def prepare(context: ServerContext, _: ChatRequest) -> list[PreparedPrompt]:
        return [await _chat_prompt(context, request) for request in requests]

    def make_writer(
        context: ServerContext, _: ChatRequest, head: ReplyHead, prompts: list[PreparedPrompt]
    ) -> BatchChatWriter:
        pairs = zip(requests, prompts, strict=True)
        writers = [_chat_writer(context, request, head, [prompt]) for request, prompt in pairs]
        return BatchChatWriter(head, writers)

    head = ReplyHead.of(context_of(http), http, requests[0], "chatcmpl")
    generation, writer = await begin(http, requests[0], head, prepare, make_writer)
    return await _whole_reply(http, generation, writer)


async def invocations(http: Request) -> Response | ASGIApp:
    """A chat, a completion or a session's begin or end, by its body. For Amazon SageMaker."""
    given, context = await field_names(http), context_of(http)
    if "requestType" in given:
        asked = await read_body(http, SessionRequest)
        if others := sorted(given - {"requestType"}):
            message = f"a request for a session has no field {quoted(others[0])}; leave it out"
            raise RequestError(message, parameter=others[0])
        opens = asked.request_type == "NEW_SESSION"
        return context.sessions.begin() if opens else context.sessions.close(http)
    context.sessions.check(http)
    adapter = http.headers.get(_ADAPTER_HEADER)
    if adapter is not None:  # it stands for the body's model; another name is answered 404
        context.served_name(adapter)
    if "messages" in given:
        return await chat_completions(http)
    if "prompt" in given:
        return await completions(http)
    raise RequestError(
        "Cannot find suitable handler for request. Expected one of: "
        "['ChatCompletionRequest', 'CompletionRequest']; a body with `messages` is the first, one "
        "with `prompt` the second.",
        parameter="messages",
    )


async def _generate(
    http: Request,
    request: Asked,
    id_prefix: str,
    prepare: _Prepare[Asked],
    make_writer: Callable[
        [ServerContext, Asked, ReplyHead, list[PreparedPrompt]], ReplyWriter[Asked, Any]
    ],
) -> Response | ASGIApp:
    """From a request to its reply."""
    context = context_of(http)
    head = ReplyHead.of(context, http, request, id_prefix)
    generation, writer = await begin(http, request, head, prepare, make_writer)
    return await reply_of(http, request.stream is True, generation, writer)


async def reply_of(
    http: Request, is_stream: bool, generation: Generation, writer: _StreamWriter
) -> Response | ASGIApp:
    """The reply to a request that has begun, whole or as a stream."""
    if not is_stream:
        return await _whole_reply(http, generation, writer)
    context = context_of(http)
    return EventStream(
        writer.stream(generation, context.pool),
        generation.close,
        keep_alive_s=context.args.sse_keep_alive_interval,
    )


async def begin(
    http: Request,
    request: Asked,
    head: ReplyHead,
    prepare: _Prepare[Asked],
    make_writer: Callable[[ServerContext, Asked, ReplyHead, list[PreparedPrompt]], Writer],
    own_name: Callable[[str], str] = str,
) -> tuple[Generation, Writer]:
    """Checks a request and hands it to the engine. `own_name`: what a field of a chat is called in
    this API."""
    context = context_of(http)
    engine, deadline = context.live_engine(), deadline_of(http, context.args.request_timeout)
    refuse_unsupported(request)
    refuse_with_beams(request)
    ignored = fields_without_effect(request, context.config)
    ignored += fields_without_beams(request)
    if ignored:
        context.ignored_fields.tell(http, ignored)
    has_beams = request.use_beam_search is True
    make_params = beam_sampling_params if has_beams else sampling_params
    params = await context.pool.run(lists_work(request), make_params, context, request)
    engine.requests.check_admission(1)
    salt = getattr(http.state, TENANT_SALT, None)
    prompts = [prompt.of_tenant(salt) for prompt in await prepare(context, request)]
    writer = make_writer(context, request, head, prompts)
    with named_as_asked(request):
        left_out = await set_reply_form(context, prompts[0].reply, params)
    context.ignored_fields.tell(http, map(own_name, left_out))
    return await _start(context, http, head, request, prompts, params, deadline), writer


class _WholeWriter(Protocol):
    """What writes a whole reply."""

    def whole_size(self, finals: Sequence[RequestOutput]) -> int: ...

    def whole(self, finals: Sequence[RequestOutput]) -> list[bytes]: ...


class _StreamWriter(_WholeWriter, Protocol):
    """What writes a stream too."""

    def stream(self, generation: Generation, pool: WorkPool) -> AsyncIterator[bytes]: ...


async def _whole_reply(http: Request, generation: Generation, writer: _WholeWriter) -> Response:
    context = context_of(http)
    finals = await until_gone(http, generation, generation.final_outputs())
    if finals is None:
        return Response()
    size = writer.whole_size(finals)
    return whole_reply(http, await context.pool.run(size, writer.whole, finals))


def whole_reply(http: Request, pieces: Sequence[bytes]) -> Response:
    """A reply that does not stream; its headers tell of the server's load if the request asks."""
    reply = pieced_response(pieces)
    form = http.headers.get(LOAD_FORMAT_HEADER, "")
    report = load_report(form, context_of(http).loaded_engine().metrics.series)
    if report is not None:
        reply.headers[LOAD_HEADER] = report
    return reply


async def chat_prompts(context: ServerContext, request: ChatRequest) -> list[PreparedPrompt]:
    """The one prompt of a chat, with how its reply is read."""
    return [await _chat_prompt(context, request)]


async def _chat_prompt(context: ServerContext, request: ChatRequest) -> PreparedPrompt:
    tools = tool_use(request, context.args.tool_strict_level)
    prompt = await chat_prompt(context, request)
    return replace(prompt, reply=await plan_reply(context, request, tools, prompt.text or ""))


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
    check_lists(params, len(prompts))
    lengths = [len(prompt.token_ids) for prompt in prompts]
    context.limits.check_reply(request, params, lengths, context.config.model.vocab_size)
    start = Generation.start
    if request.use_beam_search:
        from quire.server.requests.beams.generation import BeamGeneration  # rarely used

        beams = beam_search_params(request, params, context.config.model.max_model_len)
        start = partial(BeamGeneration.begin, beams=beams)
    trace_headers = {name: http.headers[name] for name in _TRACE_HEADERS if name in http.headers}
    with named_as_asked(request):
        generation = await start(
            context,
            prompts,
            params,
            head.id,
            priority=_priority(http, request),
            deadline=deadline,
            trace_headers=trace_headers,
        )
    generation.named = partial(as_asked, request)
    return generation


def _priority(http: Request, request: CompletionRequest | ChatRequest) -> int:
    """Of the header, if it holds a number, as in vLLM; otherwise of the body."""
    with suppress(KeyError, ValueError):
        return int(http.headers[_PRIORITY_HEADER])
    return request.priority or 0


async def until_gone(
    http: Request, generation: Generation, work: Coroutine[Any, Any, Result]
) -> Result | None:
    """The result of what reads the outputs of a generation; None if the client left, which ends
    the work at once."""
    is_gone = False

    async def watch() -> None:
        nonlocal is_gone
        while (await http.receive())["type"] != "http.disconnect":
            pass
        is_gone = True
        generation.close()

    watcher = asyncio.get_running_loop().create_task(watch())
    try:
        result = await work
        return None if is_gone else result
    finally:
        generation.close()
        watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watcher
