"""`StopChecker`: finds stop strings in a growing text and says what is safe to show already.

One per request that has stop strings; the output processor owns it. Knows text alone. Its work is
proportional to the text's length for every stop string, whatever the two look like: Knuth, Morris
and Pratt's algorithm, which never looks at a character twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


class StopChecker:
    """Cuts a text at the stop string that is complete first.

    Invariant: no character is given out that may still become part of a stop string, so a
    stream shows exactly the text that a finished answer has.
    """

    def __init__(self, stop: Sequence[str], *, include_stop_str_in_output: bool = False) -> None:
        """`stop` holds no empty strings; with none at all every text passes through."""
        self.matched: str | None = None
        """The stop string that was found; the text ended there."""
        self._matchers = [_Matcher(each) for each in stop]
        self._first_letters = frozenset(each[0] for each in stop)
        self._include = include_stop_str_in_output
        self._held = ""

    def feed(self, text: str, *, may_stop: bool = True) -> str:
        """Takes the next piece of text and gives out what is safe.

        `may_stop` False (below `min_tokens`): a stop string that ends within this piece does
        not count. After a match (`matched`) everything further is dropped.
        """
        if not self._matchers:
            return text
        if self.matched is not None or not text:
            return ""
        if not self._held and self._first_letters.isdisjoint(text):
            return text
        ends = [matcher.feed(text) for matcher in self._matchers]
        seen, text = len(self._held), self._held + text
        if may_stop and (first := self._first(ends)) is not None:
            self._held, self.matched = "", self._matchers[first].stop
            end = seen + (ends[first] or 0)
            return text[: end if self._include else end - len(self.matched)]
        held = max(matcher.state for matcher in self._matchers)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """Gives out what was held back: the text has ended without a stop string."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _first(ends: list[int | None]) -> int | None:
        """Which one ends first; of several at the same place the first of the list, as in vLLM."""
        found = [(end, index) for index, end in enumerate(ends) if end is not None]
        return min(found)[1] if found else None


class _Matcher:
    """Looks for one stop string in a growing text."""

    __slots__ = ("_shorter", "state", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.state = 0
        """Length of the longest end of the text that begins the stop string, and is not all of it.
        """
        self._shorter = _shorter_states(stop)

    def feed(self, text: str) -> int | None:
        """Takes the next piece; where in it the stop string ended first, or None."""
        stop, shorter, state = self.stop, self._shorter, self.state
        first_end, place = None, 0
        while place < len(text):
            if not state:  # nothing is begun: on to the next beginning
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
    """For each length of a beginning of `stop`: that of the longest shorter beginning which it ends
    with."""
    shorter = [0, 0]
    state = 0
    for letter in stop[1:]:
        while state and letter != stop[state]:
            state = shorter[state]
        if letter == stop[state]:
            state += 1
        shorter.append(state)
    return tuple(shorter)
