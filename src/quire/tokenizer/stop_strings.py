"""`StopChecker` finds stop strings in a growing text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


class StopChecker:
    """Cuts a text at the stop string that is complete first.

    Invariant: a character that may still become part of a stop string is not returned yet, so a
    stream shows exactly the text of the finished output. Time is linear in the text's length for
    every stop string (the Knuth-Morris-Pratt algorithm).
    """

    def __init__(self, stop: Sequence[str], *, include_stop_str_in_output: bool = False) -> None:
        """`stop` holds no empty strings. If `stop` is empty, every text passes unchanged."""
        self.matched: str | None = None
        """The stop string that was found; the text ended there."""
        self._matchers = [_Matcher(each) for each in stop]
        self._first_letters = frozenset(each[0] for each in stop)
        self._include = include_stop_str_in_output
        self._pending = ""

    def feed(self, text: str, *, may_stop: bool = True) -> str:
        """Adds the next piece of text and returns the text that is safe to show.

        `may_stop` False (below `min_tokens`): a stop string that ends within this piece does
        not count. After a match (`matched`), all further text is dropped.
        """
        if not self._matchers:
            return text
        if self.matched is not None or not text:
            return ""
        if not self._pending and self._first_letters.isdisjoint(text):
            return text
        ends = [matcher.feed(text) for matcher in self._matchers]
        seen, text = len(self._pending), self._pending + text
        if may_stop and (first := self._first(ends)) is not None:
            self._pending, self.matched = "", self._matchers[first].stop
            end = seen + (ends[first] or 0)
            return text[: end if self._include else end - len(self.matched)]
        num_pending = max(matcher.state for matcher in self._matchers)
        self._pending = text[len(text) - num_pending :]
        return text[: len(text) - num_pending]

    def finish(self) -> str:
        """Returns the pending text: the text has ended without a stop string."""
        pending, self._pending = self._pending, ""
        return pending

    @staticmethod
    def _first(ends: list[int | None]) -> int | None:
        """The index of the stop string that ends first; on a tie the first in the list, as vLLM."""
        found = [(end, index) for index, end in enumerate(ends) if end is not None]
        return min(found)[1] if found else None


class _Matcher:
    """Looks for one stop string in a growing text."""

    __slots__ = ("_shorter", "state", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.state = 0
        """Length of the longest suffix of the text that is a proper prefix of the stop string."""
        self._shorter = _shorter_states(stop)

    def feed(self, text: str) -> int | None:
        """Adds the next piece; returns the offset in it where the stop string first ended, or
        None."""
        stop, shorter, state = self.stop, self._shorter, self.state
        first_end, place = None, 0
        while place < len(text):
            if not state:  # no partial match: skip to the next candidate
                place = text.find(stop[0], place)
                if place < 0:
                    break
            while state and text[place] != stop[state]:
                state = shorter[state]
            if text[place] == stop[state]:
                state += 1
            place += 1
            if state == len(stop):
                first_end = first_end or place
                state = shorter[state]
        self.state = state
        return first_end


@lru_cache(maxsize=64)
def _shorter_states(stop: str) -> tuple[int, ...]:
    """The failure function: for each prefix of `stop`, by length, the length of its longest proper
    prefix that is also its suffix."""
    shorter = [0, 0]
    state = 0
    for letter in stop[1:]:
        while state and letter != stop[state]:
            state = shorter[state]
        if letter == stop[state]:
            state += 1
        shorter.append(state)
    return tuple(shorter)
