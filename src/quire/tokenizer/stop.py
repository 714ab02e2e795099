"""`StopChecker`: finds stop strings in a growing text and says what is safe to show already.

One per request that has stop strings; the output processor owns it. Knows text alone.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopChecker:
    """Cuts a text at the stop string that is complete first.

    Invariant: no character is given out that may still become part of a stop string, so a
    stream shows exactly the text that a finished answer has.
    """

    def __init__(self, stop: Sequence[str], *, include_stop_str_in_output: bool = False) -> None:
        """`stop` holds no empty strings; with none at all every text passes through."""
        self.matched: str | None = None
        """The stop string that was found; the text ended there."""
        self._stop = tuple(stop)
        self._first_letters = frozenset(each[0] for each in stop)
        self._include = include_stop_str_in_output
        self._held = ""

    def feed(self, text: str, *, may_stop: bool = True) -> str:
        """Takes the next piece of text and gives out what is safe.

        `may_stop` False (below `min_tokens`): a stop string that ends within this piece does
        not count. After a match (`matched`) everything further is dropped.
        """
        if not self._stop:
            return text
        if self.matched is not None or not text:
            return ""
        if not self._held and self._first_letters.isdisjoint(text):
            return text
        seen = len(self._held)
        text = self._held + text
        if may_stop and (end := self._find(text, seen)) is not None:
            self._held = ""
            return text[:end]
        held = self._num_held(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """Gives out what was held back: the text has ended without a stop string."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str, seen: int) -> int | None:
        """Where the text is cut by the stop string that ends first, and beyond `seen`.

        Several that end at the same place: the first of the list, as vLLM has it.
        """
        first_end, cut = len(text) + 1, None
        for stop in self._stop:
            begin = text.find(stop, max(0, seen - len(stop) + 1))
            if begin >= 0 and begin + len(stop) < first_end:
                first_end = begin + len(stop)
                cut = first_end if self._include else begin
                self.matched = stop
        return cut

    def _num_held(self, text: str) -> int:
        """Length of the longest end of the text that begins some stop string."""
        longest = 0
        for stop in self._stop:
            begin = text.find(stop[0], max(0, len(text) - len(stop) + 1))
            while begin >= 0 and len(text) - begin > longest:
                if stop.startswith(text[begin:]):
                    longest = len(text) - begin
                begin = text.find(stop[0], begin + 1)
        return longest
