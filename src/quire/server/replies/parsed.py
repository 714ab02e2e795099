"""`ParsedReply`: the events of a chat's reply, choice by choice, for whichever API writes them.

The same for whole replies and streams: the events of a whole reply are those of all its text at
once, and say the same as those of its parts.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from quire.outputs import CompletionOutput
from quire.parsers.events import (
    Arguments,
    CallBegins,
    CallEnds,
    Event,
    Message,
    Reasoning,
)
from quire.parsers.format import ReplyFormat
from quire.parsers.parser import ReplyParser
from quire.server.requests.chats.tool_use import ToolUse


@dataclass(frozen=True, slots=True)
class ReplyPlan:
    """How the reply to one prompt is read."""

    format: ReplyFormat = field(default_factory=ReplyFormat)
    tools: ToolUse = field(default_factory=ToolUse)
    is_reasoning: bool = False
    """The prompt ends within the reasoning."""
    shows_reasoning: bool = True
    """The reply tells the reasoning, or leaves it out."""

    @property
    def is_plain(self) -> bool:
        """The reply is its text."""
        return self.format.reasoning is None and not self.tools.is_searched

    def parser(self) -> ReplyParser:
        """For one choice."""
        schemas = self.tools.schemas if self.tools.is_searched else None
        return ReplyParser(self.format, schemas, is_reasoning=self.is_reasoning)


PLAIN = ReplyPlan()
"""The reply is its text."""


class ParsedReply:
    """Reads the choices of a reply, each by a parser of its own."""

    def __init__(self, plan: ReplyPlan) -> None:
        self.plan = plan
        self._parsers: dict[int, ReplyParser] = {}

    def events(self, one: CompletionOutput) -> list[Event]:
        """What is new of a choice, in order. Calls have ids."""
        parser = self._parsers.get(one.index)
        if parser is None:
            parser = self._parsers[one.index] = self.plan.parser()
        events = parser.feed(one.text)
        if one.finish_reason is not None:
            events += parser.finish()
        return [*self._shown(events)]

    def message(self, one: CompletionOutput) -> Message:
        """The message of a choice that is complete."""
        return Message.of(self.events(one))

    def finish_reason(self, one: CompletionOutput) -> str | None:
        """How a choice ended, once its last events were given; None while it goes on."""
        parser = self._parsers.get(one.index)
        has_calls = parser is not None and parser.num_calls > 0
        if one.finish_reason != "stop" or not has_calls or self.plan.tools.is_named:
            return one.finish_reason
        return "function_call" if self.plan.tools.is_legacy else "tool_calls"

    def _shown(self, events: Iterable[Event]) -> Iterable[Event]:
        """Without what the request does not want, and with an id for each call."""
        for event in events:
            if isinstance(event, Reasoning):
                if self.plan.shows_reasoning:
                    yield event
            elif isinstance(event, CallBegins | Arguments | CallEnds):
                if event.index and not self.plan.tools.is_parallel:
                    continue
                if isinstance(event, CallBegins) and event.id is None:
                    event = replace(event, id=new_call_id())
                yield event
            else:
                yield event


def new_call_id() -> str:
    """An id for a call to which the model gave none."""
    return f"chatcmpl-tool-{secrets.token_hex(16)}"
