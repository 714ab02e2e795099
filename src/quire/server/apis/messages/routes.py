"""`/v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.errors import RequestError
from quire.server.apis.messages.reading import read_message, read_prompt
from quire.server.apis.messages.reply import (
    ContextManagement,
    MessagesReply,
    StreamEvent,
    TokenCount,
)
from quire.server.apis.messages.schema import (
    CountTokensRequest,
    Effort,
    MessagesRequest,
    PromptFields,
)
from quire.server.apis.messages.writing import MESSAGES_FORM, MessagesWriter
from quire.server.bodies.json_http import context_of
from quire.server.conversation.chat_text import chat_input
from quire.server.conversation.conversation import Conversation
from quire.server.conversation.message import ChatMessage
from quire.server.conversation.prompts import prompts_of
from quire.server.generation.begin import begin, reply_of
from quire.server.generation.reply import ReplyHead
from quire.server.requests.limits import count_chars
from quire.server.requests.request import AnyRequest
from quire.server.routing import Routes
from quire.server.served_model import ServedModel

_ROLES = ("system", "user", "system", "assistant", "user", "system")


async def merges_system(model: ServedModel, request: PromptFields) -> bool:
    """Whether the instructions between the turns of this request have to be merged into those
    before all turns. Raises CapacityError, QuireError."""
    if all(turn.role != "system" for turn in request.messages):
        return False
    has_tools = bool(request.tools)  # a model may have a template for these alone
    known = model.takes_late_system
    if has_tools not in known:
        known[has_tools] = await _takes_late_system(model, [] if has_tools else None)
    return not known[has_tools]


async def _takes_late_system(model: ServedModel, tools: Sequence[object] | None) -> bool:
    marks = [f"mark-{index}" for index in range(len(_ROLES))]
    turns = zip(_ROLES, marks, strict=True)
    text = await _rendered(
        model, [ChatMessage(role=role, content=mark) for role, mark in turns], tools=tools
    )
    if text is None:
        return False
    places = [text.find(mark) for mark in marks]
    return places[0] >= 0 and places == sorted(places)


async def disabled_effort(model: ServedModel, request: PromptFields) -> str:
    """For `thinking` of the type `disabled`. Raises CapacityError, QuireError."""
    given = model.args.anthropic_disabled_thinking_effort
    if given != "auto":
        return given
    if request.thinking is None or request.thinking.type != "disabled":
        return "none"
    if model.disabled_thinking_effort is None:
        model.disabled_thinking_effort = await _found(model)
    return model.disabled_thinking_effort


async def _found(model: ServedModel) -> str:
    turns = [ChatMessage(role="user", content="Hi")]
    without = await _rendered(model, turns, "none")
    if without is None:
        return "low"
    for effort in get_args(Effort):
        if await _rendered(model, turns, effort) == without:
            return "low"
    return "none"


async def _rendered(
    model: ServedModel,
    messages: list[ChatMessage],
    effort: str | None = None,
    tools: Sequence[object] | None = None,
) -> str | None:
    """The prompt of a short conversation; None if the template refuses it."""
    probe = chat_input(model, Conversation(messages=messages, effort=effort))
    try:
        return await model.chat_renderer().render(replace(probe, tools=tools))
    except RequestError:
        return None


_PING_S = 15.0
"""Seconds without an event after which a stream sends a ping, where the options do not say: prompts
of agents are long, and their clients give up on a stream that is silent for minutes."""


ROUTES = Routes("generation")


@ROUTES.on(
    "POST", "/v1/messages", response=MessagesReply, stream=StreamEvent, has_named_events=True
)
async def create_message(http: Request, body: MessagesRequest) -> Response | ASGIApp:
    """Continues a conversation, in Anthropic's form."""
    context = context_of(http)
    model = context.target(body.model).model
    max_model_len = model.config.model.max_model_len

    def make_writer(_: AnyRequest, head: ReplyHead, prompts: list[Any]) -> MessagesWriter:
        [prompt], tokenizer = prompts, model.loaded_engine().tokenizer
        return MessagesWriter(head, prompt, tokenizer, body.max_tokens, max_model_len)

    marks = model.config.reasoning
    holds_budget = marks is not None or (await model.reply_format()).reasoning is not None
    read = partial(read_message, body, max_model_len, holds_budget=holds_budget)
    asked = await _read(model, body, read)
    head = ReplyHead.of(context, http, asked, "msg")
    head = replace(head, id=head.id.replace("-", "_", 1))  # as Anthropic's begin
    generation, writer = await begin(http, asked, head, make_writer)
    return await reply_of(http, asked.reply.stream, generation, writer, MESSAGES_FORM, _PING_S)


@ROUTES.on("POST", "/v1/messages/count_tokens", tag="prompts", gives="text")
async def count_tokens(http: Request, body: CountTokensRequest) -> TokenCount:
    """Counts the tokens of a conversation's prompt, in Anthropic's form."""
    model = context_of(http).target(body.model).model
    asked = await _read(model, body, partial(read_prompt, body))
    with asked.named():
        [prompt] = await prompts_of(model, asked, has_reply=False)
    count = len(prompt.token_ids)
    management = ContextManagement(original_input_tokens=count)
    return TokenCount(input_tokens=count, context_management=management)


async def _read(
    model: ServedModel, body: PromptFields, read: Callable[..., AnyRequest]
) -> AnyRequest:
    """Calls `read` for a request, on a thread if it is large."""
    options = {
        "merges_system": await merges_system(model, body),
        "disabled_effort": await disabled_effort(model, body),
    }
    return await model.pool.run(count_chars(body), partial(read, **options))
