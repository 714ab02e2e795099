"""`POST /v1/responses`: makes a response, as /v1/chat/completions makes a reply.

Its prompt alone is made by `/v1/responses/render` and counted by `/v1/responses/input_tokens`.
"""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.server.apis.chat.prompts import chat_prompt
from quire.server.apis.chat.reply_plan import ChatPrompt
from quire.server.apis.chat.routes import chat_prompts
from quire.server.apis.chat.schema import ChatRequest
from quire.server.apis.responses.input.asked import Asked, asked_of
from quire.server.apis.responses.input.conversion import named_as_asked
from quire.server.apis.responses.output.shape import ResponseShape
from quire.server.apis.responses.output.writer import ResponsesWriter
from quire.server.apis.responses.run import ResponseRun
from quire.server.apis.responses.schema.reply import InputTokens
from quire.server.apis.responses.schema.request import ResponsesRequest
from quire.server.apis.responses.store.store import response_store
from quire.server.bodies.json_http import (
    context_of,
    json_response,
    named_event_stream,
    pieced_response,
    read_body,
)
from quire.server.context import ServerContext
from quire.server.generation.begin import begin, whole_reply
from quire.server.generation.replies.head import ReplyHead
from quire.server.http.presence import until_gone


async def create_response(http: Request) -> Response | ASGIApp:
    """Responds to an input with messages and calls of tools."""
    context = context_of(http)
    request = await read_body(http, ResponsesRequest)
    with named_as_asked():
        asked = await asked_of(http, context, request)
        run, writer = await _begin(http, context, asked)
    if request.background:
        return await _in_background(http, asked, run, writer)
    if request.stream:
        return named_event_stream(context, run.stream(), run.generation.close)
    pieces = await until_gone(http, run.generation.close, run.whole())
    return whole_reply(http, run.generation, pieces) if pieces else Response()


async def count_input_tokens(http: Request) -> Response:
    """How many tokens the prompt of a response has."""
    context = context_of(http)
    request = await read_body(http, ResponsesRequest)
    with named_as_asked():
        asked = await asked_of(http, context, request)
        model = context.target(request.model).model
        prompt = await chat_prompt(model, asked.chat)
    return json_response(InputTokens(input_tokens=len(prompt.token_ids)))


async def render_response(http: Request) -> Response:
    """The prompt and parameters that a request for a response would run with."""
    from quire.server.apis.text.routes import rendered_chat  # its chain of imports is long

    context = context_of(http)
    request = await read_body(http, ResponsesRequest)
    with named_as_asked():
        asked = await asked_of(http, context, request)
        return await rendered_chat(http, asked.chat)


async def _begin(
    http: Request, context: ServerContext, asked: Asked
) -> tuple[ResponseRun, ResponsesWriter]:
    head = ReplyHead.of(context, http, asked.chat, "resp")
    head = replace(head, id=asked.stored.id)
    has_events, num_bytes = asked.request.stream is True, len(await http.body())

    def make_writer(_: ChatRequest, head: ReplyHead, prompts: list[ChatPrompt]) -> ResponsesWriter:
        [prompt], engine = prompts, head.target.model.loaded_engine()
        defaults = engine.config.model.default_sampling_params
        shape = ResponseShape(
            asked.request,
            defaults,
            head.id,
            head.created,
            head.model,
            asked.is_stored,
            num_bytes,
        )
        return ResponsesWriter(
            shape,
            prompt,
            asked.offered,
            engine.tokenizer,
            has_events=has_events,
            has_metrics=head.has_metrics,
            tokens_as_ids=head.tokens_as_ids,
        )

    generation, writer = await begin(http, asked.chat, head, chat_prompts, make_writer)
    store = response_store(http)
    run = ResponseRun(
        context.pool, store, generation, writer, asked.stored, is_stored=asked.is_stored
    )
    return run, writer


async def _in_background(
    http: Request, asked: Asked, run: ResponseRun, writer: ResponsesWriter
) -> Response | ASGIApp:
    """Answers at once, and completes the response in the background."""
    context, store, stored = context_of(http), response_store(http), asked.stored
    try:
        queued = await context.pool.run(writer.size_of_begin(), writer.queued)
        store.add(stored)
    except BaseException:
        run.generation.close()
        raise
    store.set_reply(stored, "queued", queued)
    stored.cancel = run.generation.close
    context.keep(run.in_background())
    if asked.request.stream:
        return named_event_stream(context, stored.events_after(-1))
    return pieced_response(queued)
