"""`ParsedReply`: the events of a chat's reply, choice by choice, for the writers of several APIs.

The same for whole replies and streams: the events of a whole reply are those of all its text at
once, and say the same as those of its parts.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace

from quire.outputs import CompletionOutput
from quire.parsers.events import Arguments, CallBegins, CallEnds, Event, Message, Reasoning
from quire.parsers.reasoning.token_count import ReasoningTokenCount
from quire.server.apis.chat.reply_plan import PLAIN, ReplyPlan, ReplyReader
from quire.tokenizer import IncrementalDetokenizer, Tokenizer


class ParsedReply:
    """Reads the choices of a reply, each by a parser of its own."""

    def __init__(
        self, plan: ReplyPlan | None, tokenizer: Tokenizer | None, prompt_token_ids: Sequence[int]
    ) -> None:
        """`plan` None: the reply is its text. Tokens of reasoning are counted with `tokenizer`, if
        there is one."""
        self.plan = plan or PLAIN
        self._tokenizer = tokenizer
        self._prompt_token_ids = prompt_token_ids
        self._parsers: dict[int, ReplyReader] = {}
        self._counts: dict[int, ReasoningTokenCount] = {}
        self._are_complete: dict[int, bool] = {}
        """For each choice with calls, whether the last of them is complete."""

    def events(self, one: CompletionOutput) -> list[Event]:
        """The events of a choice's new text, in order. Calls have ids."""
        parser = self._parsers.get(one.index)
        if parser is None:
            parser = self._parsers[one.index] = self.plan.parser(self._prompt_token_ids)
            self._begin_count(one.index)
        is_last, is_cut = one.finish_reason is not None, self._is_cut(one)
        events = parser.read(one.text, one.token_ids, is_last=is_last, is_cut=is_cut)
        if (count := self._counts.get(one.index)) is not None:
            count.push(one.token_ids)
        return [*self._shown(one.index, events)]

    def message(self, one: CompletionOutput) -> Message:
        """The message of a choice that is complete."""
        return Message.of(self.events(one))

    def finish_reason(self, one: CompletionOutput) -> str | None:
        """How a choice ended, once its last events were given; None while it goes on."""
        if not self.ends_with_calls(one) or self.plan.tools.is_named:
            return one.finish_reason
        return "function_call" if self.plan.tools.is_legacy else "tool_calls"

    def ends_with_calls(self, one: CompletionOutput) -> bool:
        """Whether a choice ended with calls that can be run: the last of them is complete."""
        return one.finish_reason == "stop" and self._are_complete.get(one.index, False)

    def _is_cut(self, one: CompletionOutput) -> bool:
        """Whether the model did not end the choice itself."""
        is_stopped = isinstance(one.stop_reason, str) and not self.plan.keeps_stop_strings
        return one.finish_reason not in (None, "stop") or is_stopped

    def reasoning_tokens(self, index: int) -> int | None:
        """Reasoning tokens of a choice so far; None if they are not counted."""
        count = self._counts.get(index)
        return None if count is None else count.count(self._parsers[index].reasoning_spans)

    def _begin_count(self, index: int) -> None:
        if self.plan.format.reasoning is None or self._tokenizer is None:
            return
        detokenizer = IncrementalDetokenizer.create(
            self._tokenizer,
            self._prompt_token_ids,
            skip_special_tokens=self.plan.skips_special_tokens,
            kept_token_ids=self.plan.kept_token_ids,
        )
        self._counts[index] = ReasoningTokenCount(detokenizer)

    def _new_id(self, call: CallBegins) -> str:
        tools = self.plan.format.tools
        index = self.plan.num_calls_before + call.index
        own = None if tools is None else tools.make_id(call.name, index)
        return own or f"chatcmpl-tool-{secrets.token_hex(16)}"

    def _shown(self, index: int, events: Iterable[Event]) -> Iterable[Event]:
        """The events that a reply includes: without those that the request excludes; calls get
        ids."""
        for event in events:
            if isinstance(event, Reasoning):
                if self.plan.shows_reasoning:
                    yield event
            elif isinstance(event, CallBegins | Arguments | CallEnds):
                if event.index and not self.plan.tools.rules.is_parallel:
                    continue
                if not isinstance(event, Arguments):
                    self._are_complete[index] = isinstance(event, CallEnds)
                if isinstance(event, CallBegins) and event.id is None:
                    event = replace(event, id=self._new_id(event))
                yield event
            else:
                yield event
