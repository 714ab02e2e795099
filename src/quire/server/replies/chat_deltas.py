"""The messages and deltas of `/v1/chat/completions`, made of a reply's events."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quire.parsers.events import Arguments, CallBegins, Content, Event, Message, Reasoning
from quire.server.requests.chats.reply_plan import ReplyPlan
from quire.server.schema.chat import (
    CalledFunction,
    Delta,
    DeltaFunction,
    DeltaToolCall,
    ReplyMessage,
    ReplyToolCall,
)


def reply_message(role: str, message: Message, plan: ReplyPlan) -> ReplyMessage:
    """A whole message. Its content is null where there is something else instead; empty, as in
    vLLM, where the request demanded a call."""
    calls = [
        CalledFunction(name=call.name, arguments=call.arguments) for call in message.tool_calls
    ]
    is_demanded = plan.tools.rules.choice == "required" and not plan.tools.is_legacy
    is_null = bool(calls or message.reasoning) and not is_demanded
    made = ReplyMessage(
        role=role,
        content=None if is_null and not message.content else message.content,
        reasoning=message.reasoning or None,
    )
    if plan.reasoning_field == "reasoning_content":
        made.reasoning_content, made.reasoning = made.reasoning, msgspec.UNSET
    if calls and plan.tools.is_legacy:
        made.function_call = calls[0]
    elif calls:
        ids = [call.id or "" for call in message.tool_calls]
        pairs = zip(ids, calls, strict=True)
        made.tool_calls = [ReplyToolCall(id=call_id, function=call) for call_id, call in pairs]
    return made


def delta_of(events: Iterable[Event], plan: ReplyPlan) -> Delta | None:
    """What a step brought; None if that is nothing. One entry for each call."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: dict[int, DeltaToolCall] = {}
    for event in events:
        if isinstance(event, Content):
            content.append(event.text)
        elif isinstance(event, Reasoning):
            reasoning.append(event.text)
        elif isinstance(event, CallBegins):
            function = DeltaFunction(name=event.name, arguments="")
            calls[event.index] = DeltaToolCall(
                index=event.index, id=event.id, type="function", function=function
            )
        elif isinstance(event, Arguments):
            call = calls.setdefault(
                event.index, DeltaToolCall(index=event.index, function=DeltaFunction())
            )
            call.function.arguments = (call.function.arguments or "") + event.text
    if not content and not reasoning and not calls:
        return None
    delta = Delta(content="".join(content) if content else None)
    if reasoning:
        setattr(delta, plan.reasoning_field, "".join(reasoning))
    if calls and plan.tools.is_legacy:
        delta.function_call = next(iter(calls.values())).function
    elif calls:
        delta.tool_calls = list(calls.values())
    return delta
