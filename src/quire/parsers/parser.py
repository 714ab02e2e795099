"""`ReplyParser`: converts the text of a reply into events as it arrives.

Every API uses it, streamed or not: a whole reply is the sum of its events. How the text is split
into pieces affects neither the message nor the order (see `reader`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.parsers.events import Event, Message, Reply, merged
from quire.parsers.format import ReplyFormat
from quire.parsers.reader import Parse


class ReplyParser:
    """Parses one reply. Not thread-safe."""

    def __init__(
        self,
        format: ReplyFormat,
        tools: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        is_reasoning: bool = False,
    ) -> None:
        """`tools`: the JSON schema of the arguments for each tool; None: calls are not parsed and
        stay text. `is_reasoning`: the prompt ends within the reasoning."""
        self._reply = Reply(tools or {}, is_reasoning=is_reasoning)
        self._parse: Parse[None] | None = format.parse(self._reply, has_tools=tools is not None)

    @property
    def is_reasoning(self) -> bool:
        """Whether the next text is reasoning, as far as the text so far shows."""
        return self._reply.is_reasoning

    @property
    def num_calls(self) -> int:
        """Number of calls that have begun."""
        return self._reply.num_calls

    @property
    def reasoning_spans(self) -> Sequence[tuple[int, int]]:
        """Spans of reasoning in the text so far: first character, and the character after the
        last."""
        return self._reply.reasoning_spans

    def read(
        self, text: str, token_ids: Sequence[int] = (), *, is_last: bool, is_cut: bool = False
    ) -> list[Event]:
        """Events for more text; with the last of it, also events held back. `token_ids` are unused
        here: plug-in parsers with the same interface need them. `is_cut`: see `finish`."""
        del token_ids
        events = self.feed(text)
        return events + self.finish(is_cut=is_cut) if is_last else events

    def feed(self, text: str) -> list[Event]:
        """Events for more text. Successive texts of one kind form one event."""
        if text:
            self._reply.reader.push(text)
            self._advance()
        return merged(self._reply.taken())

    def keep_reasoning_space(self) -> list[Event]:
        """Emit held-back white space at the end of the reasoning so far as part of it."""
        self._reply.keep_reasoning_space()
        return merged(self._reply.taken())

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        """Events that were held back, at the end of the text. `is_cut`: a limit or a stop string
        ended the reply. Then an unfinished mark, or the beginning of a call without its name, is
        dropped."""
        self._reply.reader.end(is_cut=is_cut)
        self._advance()
        self._reply.end()
        return merged(self._reply.taken())

    def _advance(self) -> None:
        if self._parse is None:
            return
        try:
            next(self._parse)
        except StopIteration:
            self._parse = None


def parse_whole(
    format: ReplyFormat,
    text: str,
    tools: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    is_reasoning: bool = False,
) -> Message:
    """The message of a whole reply; the arguments are those of `ReplyParser`."""
    parser = ReplyParser(format, tools, is_reasoning=is_reasoning)
    return Message.of([*parser.feed(text), *parser.finish()])
