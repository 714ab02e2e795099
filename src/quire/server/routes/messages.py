"""`/v1/messages` and `/v1/messages/count_tokens`: Anthropic's Messages API over the chats' own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.server.context import ServerContext
from quire.server.http.event_stream import EventStream
from quire.server.replies.head import ReplyHead
from quire.server.replies.messages.events import MESSAGES_FORM
from quire.server.replies.messages.writer import MessagesWriter
from quire.server.reply_format import reply_format_of
from quire.server.requests.chats.plan_reply import plan_reply
from quire.server.requests.chats.tool_use import tool_use
from quire.server.requests.messages.chat_request import (
    chat_prompt_fields,
    chat_request,
    fields_without_effect,
    named_as_asked,
    own_name,
)
from quire.server.requests.messages.disabled_thinking import disabled_effort
from quire.server.requests.messages.late_system import merges_system
from quire.server.requests.messages.tools import held_as_asked
from quire.server.requests.prompts import PreparedPrompt, chat_prompt
from quire.server.requests.request_work import count_chars
from quire.server.routes.bodies import (
    context_of,
    json_response,
    pieced_response,
    read_body,
)
from quire.server.routes.generate import begin, until_gone
from quire.server.schema.chat import ChatRequest
from quire.server.schema.messages import CountTokensRequest, MessagesRequest, PromptFields
from quire.server.schema.messages_reply import ContextManagement, TokenCount
from quire.server.work_pool import INLINE_SIZE

_PING_S = 15.0
"""Seconds without an event after which a stream sends a ping, where the options do not say: prompts
of agents are long, and their clients give up on a stream that is silent for minutes."""


async def create_message(http: Request) -> Response | ASGIApp:
    """Continues a conversation, in Anthropic's form."""
    context = context_of(http)
    asked = await read_body(http, MessagesRequest)
    max_model_len = context.config.model.max_model_len

    def make_writer(
        _: ServerContext, __: ChatRequest, head: ReplyHead, prompts: list[PreparedPrompt]
    ) -> MessagesWriter:
        [prompt], tokenizer = prompts, context.loaded_engine().tokenizer
        return MessagesWriter(head, prompt, tokenizer, asked.max_tokens, max_model_len)

    holds_budget = await _holds_budget(context)
    context.ignored_fields.tell(http, fields_without_effect(asked, holds_budget=holds_budget))
    with named_as_asked():
        convert = partial(chat_request, asked, max_model_len, holds_budget=holds_budget)
        request = await _converted(context, asked, convert)
        head = ReplyHead.of(context, http, request, "msg")
        head = replace(head, id=head.id.replace("-", "_", 1))  # as Anthropic's begin
        generation, writer = await begin(http, request, head, _prompts, make_writer, own_name)
    if not asked.stream:
        finals = await until_gone(http, generation, generation.final_outputs())
        if finals is None:
            return Response()
        size = writer.whole_size(finals)
        return pieced_response(await context.pool.run(size, writer.whole, finals))
    return EventStream(
        writer.stream(generation, context.pool),
        generation.close,
        form=MESSAGES_FORM,
        keep_alive_s=context.args.sse_keep_alive_interval or _PING_S,
    )


async def count_tokens(http: Request) -> Response:
    """How many tokens the prompt of a conversation has, in Anthropic's form."""
    context = context_of(http)
    asked = await read_body(http, CountTokensRequest)
    context.served_name(asked.model)
    with named_as_asked():
        fields = await _converted(context, asked, partial(chat_prompt_fields, asked))
        request = ChatRequest(**fields)
        tool_use(request)  # refuses tools that cannot be
        count = len((await chat_prompt(context, request)).token_ids)
    management = ContextManagement(original_input_tokens=count)
    return json_response(TokenCount(input_tokens=count, context_management=management))


async def _prompts(context: ServerContext, request: ChatRequest) -> list[PreparedPrompt]:
    tools = held_as_asked(tool_use(request, context.args.tool_strict_level))
    prompt = await chat_prompt(context, request)
    return [replace(prompt, reply=await plan_reply(context, request, tools, prompt.text or ""))]


async def _holds_budget(context: ServerContext) -> bool:
    """Whether it is known where the model's reasoning ends."""
    if context.config.reasoning is not None:
        return True
    return (await reply_format_of(context)).reasoning is not None


async def _converted(context: ServerContext, asked: PromptFields, convert: Any) -> Any:
    """What `convert` makes of a request, on a thread if it is large."""
    merges = await merges_system(context, asked)
    effort = await disabled_effort(context, asked)
    size = count_chars(asked, INLINE_SIZE)
    return await context.pool.run(
        size, partial(convert, merges_system=merges, disabled_effort=effort)
    )
