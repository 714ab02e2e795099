"""`InPattern`, `InText`, `AtEnd`: how far a text has come in one way in which it may be read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quire.structured.free_text.expressions import ByteExpression, byte_expression, first_bytes_of
from quire.structured.free_text.ways import Pattern, Text, Way


class InPattern:
    """Within a pattern."""

    __slots__ = ("_run", "pattern")

    def __init__(self, pattern: Pattern, run: ByteExpression) -> None:
        """`run`: at the begin of the pattern's expression."""
        self.pattern = pattern
        self._run = run

    may_have_special = True
    """Whether the last token may have been a special one, which is not text."""

    def copy(self) -> InPattern:
        """Another one at the same place."""
        return InPattern(self.pattern, self._run.copy())

    def read(self, byte: int, entered: list[Way], *, may_start: bool, may_end: bool) -> bool:  # noqa: ARG002
        """Whether the text may go on so; what follows the pattern is added to `entered`."""
        if not self._run.read(byte):
            return False
        if may_end and self._run.is_complete:
            entered += self.pattern.then
        return not self._run.is_over


class AtEnd:
    """At the end of the reply."""

    may_have_special = False

    def copy(self) -> AtEnd:
        """Itself: it cannot change."""
        return self

    def read(self, byte: int, entered: list[Way], *, may_start: bool, may_end: bool) -> bool:  # noqa: ARG002
        """False: nothing follows."""
        return False


class InText:
    """Within a free text."""

    __slots__ = ("_ends", "_is_over", "_restrictions", "text")

    def __init__(self, text: Text) -> None:
        """At its begin."""
        self.text = text
        self._ends: list[tuple[ByteExpression, Sequence[Way]]] = []
        """Ends that have begun, and what follows them."""
        self._restrictions = [byte_expression(text.not_first).copy()] if text.not_first else []
        """What it may not contain, of which something has been there."""
        self._is_over = False
        """It has in it what it may not contain: only the ends that had begun before may come."""

    def copy(self) -> InText:
        """Another one at the same place."""
        other = InText(self.text)
        other._ends = [(run.copy(), then) for run, then in self._ends]
        other._restrictions = [run.copy() for run in self._restrictions]
        other._is_over = self._is_over
        return other

    @property
    def is_free(self) -> bool:
        """Whether nothing has begun that ends the text, or that it may not contain."""
        return not (self._ends or self._restrictions or self._is_over)

    @property
    def may_have_special(self) -> bool:
        """As that of an `InPattern`: as a part of an end."""
        return bool(self._ends)

    def read(self, byte: int, entered: list[Way], *, may_start: bool, may_end: bool) -> bool:
        """Whether the text may go on so. `may_start`: what begins with this byte counts. `may_end`:
        what ends with it counts; what follows is added to `entered`."""
        if may_start and not self._is_over:
            self._begin(byte)
        self._ends = [(run, then) for run, then in self._ends if run.read(byte)]
        self._restrictions = [run for run in self._restrictions if run.read(byte)]
        if may_end:
            followed = [then for run, then in self._ends if run.is_complete]
            for then in followed:
                entered += then
            if followed:
                return False
            if any(run.is_complete for run in self._restrictions):
                self._is_over, self._restrictions = True, []
        return not self._is_over or bool(self._ends)

    def _begin(self, byte: int) -> None:
        for end, then in self.text.ends.items():
            if byte in first_bytes_of(end):
                self._ends.append((byte_expression(end).copy(), then))
        for excluded in self.text.excluded:
            if byte in first_bytes_of(excluded):
                self._restrictions.append(byte_expression(excluded).copy())


def first_bytes(texts: Iterable[Text]) -> frozenset[int]:
    """With which an end of one of the texts begins, or what it may not contain."""
    watched = (one for text in texts for one in (*text.ends, *text.excluded))
    return frozenset().union(*map(first_bytes_of, watched))
