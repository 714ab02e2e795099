"""`Stream`: a reply that vLLM's callers give in pieces, each with the text before it."""

from __future__ import annotations

from collections.abc import Callable

from quire.parsers.events import Event
from quire.parsers.parser import ReplyParser


class Stream:
    """The parser of one reply. A piece that does not follow what was read begins another."""

    def __init__(self) -> None:
        self.parser: ReplyParser | None = None
        self._text = ""

    def feed(
        self, make: Callable[[], ReplyParser], previous: str | None, current: str, delta: str
    ) -> tuple[list[Event], list[Event]]:
        """Events for `delta` after `previous`, plus events of `previous` not yet emitted.

        Without a text before it, `delta` begins a reply. A text that was not given to this object
        is read first.

        Some callers always pass an empty `previous`: then `current` counts.
        """
        is_new = not previous and current == delta
        is_other = bool(previous) and previous != self._text and current == f"{previous}{delta}"
        before: list[Event] = []
        if self.parser is None or is_new or is_other:
            self.parser, self._text = make(), ""
            if is_other and previous:
                self._text = previous
                before = self.parser.feed(previous)
        self._text += delta
        return self.parser.feed(delta), before
