"""`POST /v1/responses`: makes a response, as /v1/chat/completions makes a reply.

Its prompt alone is made by `/v1/responses/render` and counted by `/v1/responses/input_tokens`.
"""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.server.context import ServerContext
from quire.server.replies.head import ReplyHead
from quire.server.replies.responses.shape import ResponseShape
from quire.server.replies.responses.writer import ResponsesWriter
from quire.server.requests.prompts import PreparedPrompt, chat_prompt
from quire.server.requests.responses.conversion import named_as_asked
from quire.server.routes.bodies import (
    context_of,
    json_response,
    named_event_stream,
    pieced_response,
    read_body,
)
from quire.server.routes.generate import begin, chat_prompts, until_gone, whole_reply
from quire.server.routes.responses.asked import Asked, asked_of
from quire.server.routes.responses.run import ResponseRun
from quire.server.routes.text import rendered_chat
from quire.server.schema.chat import ChatRequest
from quire.server.schema.responses.reply import InputTokens
from quire.server.schema.responses.request import ResponsesRequest
from quire.server.stored_responses.of_server import response_store


async def create_response(http: Request) -> Response | ASGIApp:
    """Responds to an input with messages and calls of tools."""
    context = context_of(http)
    request = await read_body(http, ResponsesRequest)
    with named_as_asked():
        asked = await asked_of(http, context, request)
        run, writer = await _begin(http, context, asked)
    if request.background:
        return await _in_background(context, asked, run, writer)
    if request.stream:
        return named_event_stream(context, run.stream(), run.generation.close)
    pieces = await until_gone(http, run.generation, run.whole())
    return whole_reply(http, pieces) if pieces else Response()


async def count_input_tokens(http: Request) -> Response:
    """How many tokens the prompt of a response has."""
    context = context_of(http)
    request = await read_body(http, ResponsesRequest)
    with named_as_asked():
        asked = await asked_of(http, context, request)
        context.served_name(request.model)
        prompt = await chat_prompt(context, asked.chat)
    return json_response(InputTokens(input_tokens=len(prompt.token_ids)))


async def render_response(http: Request) -> Response:
    """What a request for a response would run."""
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
    is_told, num_bytes = asked.request.stream is True, len(await http.body())

    def make_writer(
        context: ServerContext, _: ChatRequest, head: ReplyHead, prompts: list[PreparedPrompt]
    ) -> ResponsesWriter:
        [prompt] = prompts
        defaults = context.config.model.default_sampling_params
        shape = ResponseShape(
            asked.request,
            defaults,
            head.id,
            head.created,
            head.model,
            asked.is_stored,
            num_bytes,
        )
        engine = context.loaded_engine()
        return ResponsesWriter(
            shape,
            prompt,
            asked.offered,
            engine.tokenizer,
            is_told=is_told,
            has_metrics=head.has_metrics,
            tokens_as_ids=head.tokens_as_ids,
        )

    generation, writer = await begin(http, asked.chat, head, chat_prompts, make_writer)
    run = ResponseRun(context, generation, writer, asked.stored, is_stored=asked.is_stored)
    return run, writer


async def _in_background(
    context: ServerContext, asked: Asked, run: ResponseRun, writer: ResponsesWriter
) -> Response | ASGIApp:
    """Answers with what there is, and goes on."""
    store, stored = response_store(context), asked.stored
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
        return named_event_stream(context, stored.told(-1))
    return pieced_response(queued)
