"""`ReplyParser`: takes the text of a reply as it comes, gives the events that it makes.

The same for every API, streamed or not: a whole reply is the sum of the events. How the text is
divided changes neither message nor order (see `reader`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.parsers.events import Event, Message, merged
from quire.parsers.format import ReplyFormat
from quire.parsers.reader import Parse
from quire.parsers.reply import Reply


class ReplyParser:
    """Reads one reply. Not for two threads at once."""

    def __init__(
        self,
        format: ReplyFormat,
        tools: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        is_reasoning: bool = False,
    ) -> None:
        """`tools`: the JSON schema of the arguments for each tool; None: calls are not looked
        for, and stay text. `is_reasoning`: the prompt ends within the reasoning."""
        self._reply = Reply(tools or {}, is_reasoning=is_reasoning)
        self._parse: Parse[None] | None = format.parse(self._reply, has_tools=tools is not None)

    @property
    def is_reasoning(self) -> bool:
        """Whether what comes next is reasoning, as far as the text so far says."""
        return self._reply.is_reasoning

    @property
    def num_calls(self) -> int:
        """Calls that have begun."""
        return self._reply.num_calls

    @property
    def reasoning_spans(self) -> Sequence[tuple[int, int]]:
        """Where reasoning is in the text so far, from a character up to before another one."""
        return self._reply.reasoning_spans

    def read(
        self, text: str, token_ids: Sequence[int] = (), *, is_last: bool, is_cut: bool = False
    ) -> list[Event]:
        """What more text means; with the last of it also what was held back. `token_ids`: its
        tokens, which are not looked at: parsers of plug-ins have them too. `is_cut`: see
        `finish`."""
        del token_ids
        events = self.feed(text)
        return events + self.finish(is_cut=is_cut) if is_last else events

    def feed(self, text: str) -> list[Event]:
        """What more text means. Texts of one kind that follow each other are one event."""
        if text:
            self._reply.reader.push(text)
            self._advance()
        return merged(self._reply.taken())

    def keep_reasoning_space(self) -> list[Event]:
        """White space that was held back at the end of the reasoning so far, as part of it."""
        self._reply.keep_reasoning_space()
        return merged(self._reply.taken())

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        """What was held back, now that no more text comes. `is_cut`: a limit or a stop string ended
        the reply. Then the begin of a call whose name did not come, or a part of a mark, is no
        content: it is left out."""
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
    """The message of a whole reply; arguments as for `ReplyParser`."""
    parser = ReplyParser(format, tools, is_reasoning=is_reasoning)
    return Message.of([*parser.feed(text), *parser.finish()])
