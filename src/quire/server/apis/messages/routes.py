"""`/v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from quire.chat.job import ChatInput
from quire.errors import RequestError
from quire.server.apis.chat.prompts import chat_prompt, planned_prompt
from quire.server.apis.chat.reply_plan import ChatPrompt
from quire.server.apis.chat.schema import ChatRequest, thinking_variables
from quire.server.apis.chat.tools import tool_use
from quire.server.apis.endpoint import Routes
from quire.server.apis.messages.chat_request import (
    chat_prompt_fields,
    chat_request,
    fields_without_effect,
    named_as_asked,
    own_name,
)
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
    held_as_asked,
)
from quire.server.apis.messages.writer import MESSAGES_FORM, MessagesWriter
from quire.server.bodies.json_http import context_of
from quire.server.generation.begin import begin, reply_of
from quire.server.generation.limits import count_chars
from quire.server.generation.replies.portions import ReplyHead
from quire.server.served_model import ServedModel
from quire.server.work_pool import INLINE_SIZE

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
    probe = ChatInput(
        [{"role": role, "content": mark} for role, mark in zip(_ROLES, marks, strict=True)],
        tools=tools,
        variables=model.args.default_chat_template_kwargs,
    )
    try:
        text = await model.chat_renderer().render(probe)
    except RequestError:
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
    without = await _rendered(model, "none")
    if without is None:
        return "low"
    for effort in get_args(Effort):
        if await _rendered(model, effort) == without:
            return "low"
    return "none"


async def _rendered(model: ServedModel, effort: str) -> str | None:
    """The prompt of a short conversation; None if the template refuses it."""
    effort = model.args.template_effort(effort)
    variables = {**thinking_variables(effort), "reasoning_effort": effort}
    probe = ChatInput(
        [{"role": "user", "content": "Hi"}],
        variables={**model.args.default_chat_template_kwargs, **variables},
    )
    try:
        return await model.chat_renderer().render(probe)
    except RequestError:
        return None


_PING_S = 15.0
"""Seconds without an event after which a stream sends a ping, where the options do not say: prompts
of agents are long, and their clients give up on a stream that is silent for minutes."""


ROUTES = Routes("generation")


@ROUTES.on(
    "POST", "/v1/messages", response=MessagesReply, stream=StreamEvent, has_named_events=True
)
async def create_message(http: Request, asked: MessagesRequest) -> Response | ASGIApp:
    """Continues a conversation, in Anthropic's form."""
    context = context_of(http)
    model = context.target(asked.model).model
    max_model_len = model.config.model.max_model_len

    def make_writer(_: ChatRequest, head: ReplyHead, prompts: list[ChatPrompt]) -> MessagesWriter:
        [prompt], tokenizer = prompts, model.loaded_engine().tokenizer
        return MessagesWriter(head, prompt, tokenizer, asked.max_tokens, max_model_len)

    marks = model.config.reasoning
    holds_budget = marks is not None or (await model.reply_format()).reasoning is not None
    context.ignored_fields.tell(http, fields_without_effect(asked, holds_budget=holds_budget))
    with named_as_asked():
        convert = partial(chat_request, asked, max_model_len, holds_budget=holds_budget)
        request = await _converted(model, asked, convert)
        head = ReplyHead.of(context, http, request, "msg")
        head = replace(head, id=head.id.replace("-", "_", 1))  # as Anthropic's begin
        generation, writer = await begin(http, request, head, _prompts, make_writer, own_name)
    return await reply_of(http, asked.stream is True, generation, writer, MESSAGES_FORM, _PING_S)


@ROUTES.on("POST", "/v1/messages/count_tokens", tag="prompts", gives="text")
async def count_tokens(http: Request, asked: CountTokensRequest) -> TokenCount:
    """Counts the tokens of a conversation's prompt, in Anthropic's form."""
    model = context_of(http).target(asked.model).model
    with named_as_asked():
        fields = await _converted(model, asked, partial(chat_prompt_fields, asked))
        request = ChatRequest(**fields)
        tool_use(request)  # refuses tools that cannot be
        count = len((await chat_prompt(model, request)).token_ids)
    management = ContextManagement(original_input_tokens=count)
    return TokenCount(input_tokens=count, context_management=management)


async def _prompts(model: ServedModel, request: ChatRequest) -> list[ChatPrompt]:
    tools = held_as_asked(tool_use(request, model.args.tool_strict_level))
    return [await planned_prompt(model, request, tools)]


async def _converted(model: ServedModel, asked: PromptFields, convert: Any) -> Any:
    """Calls `convert` for a request, on a thread if it is large."""
    merges = await merges_system(model, asked)
    effort = await disabled_effort(model, asked)
    size = count_chars(asked, INLINE_SIZE)
    return await model.pool.run(
        size, partial(convert, merges_system=merges, disabled_effort=effort)
    )
