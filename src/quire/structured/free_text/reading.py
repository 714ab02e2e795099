"""`Reading`: follows all possible readings of a text, and finds where the text is free.

Reads bytes, and stops at the first part of unknown form.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.errors import GrammarError
from quire.structured.free_text.expressions import byte_expression
from quire.structured.free_text.places import AtEnd, InPattern, InText
from quire.structured.free_text.ways import Other, Text, Way


class Reading:
    """In which of the ways a text may go on."""

    __slots__ = ("_is_lost", "_num_missing", "_places")

    def __init__(self, ways: Iterable[Way]) -> None:
        """`ways`: in which it may begin."""
        self._places: list[InPattern | InText | AtEnd] = []
        self._num_missing = 0
        """Bytes of the last character."""
        self._is_lost = False
        self._enter(ways)

    def copy(self) -> Reading:
        """Another one at the same place."""
        other = Reading(())
        other._places = [one.copy() for one in self._places]
        other._num_missing, other._is_lost = self._num_missing, self._is_lost
        return other

    @property
    def is_lost(self) -> bool:
        """Whether it is no longer known where the text is."""
        return self._is_lost

    @property
    def texts(self) -> list[Text]:
        """The free texts that may go on, at a place where nothing has begun that ends one or that
        it may not contain; empty anywhere else. As long as nothing does begin, what may follow is
        the same."""
        if self._is_lost or self._num_missing:
            return []
        texts = [one.text for one in self._places if isinstance(one, InText) and one.is_free]
        return texts if len(texts) == len(self._places) else []

    @property
    def places(self) -> list[InPattern | InText | AtEnd]:
        """Where it is in each way. Of two times when a text is free with the same places, nothing
        that came between has any effect."""
        return self._places

    def read(self, data: bytes, is_special: bool) -> None:
        """Reads the bytes of the next token. A special token is not text, but an end or a part of
        an end or of a pattern."""
        try:
            self._read(data, is_special=is_special)
        except GrammarError:  # an expression takes too much to follow; the grammar itself may not
            self._is_lost = True

    def _read(self, data: bytes, *, is_special: bool) -> None:
        before, last = self._places, len(data) - 1
        for position, byte in enumerate(data):
            may_start, may_end = not (is_special and position), not is_special or position == last
            self._read_byte(byte, may_start=may_start, may_end=may_end)
        if is_special:
            self._places = [
                one for one in self._places if one.may_have_special or one not in before
            ]
        if texts := self.texts:  # places of one text are the same from here on
            self._places = [*dict(zip(map(id, texts), self._places, strict=True)).values()]
        if not data or not self._places:
            self._is_lost = True

    def _read_byte(self, byte: int, *, may_start: bool, may_end: bool) -> None:
        if byte >= 0xC0:
            self._num_missing = 1 + (byte >= 0xE0) + (byte >= 0xF0)
        elif byte >= 0x80:
            self._num_missing -= 1
        entered: list[Way] = []
        self._places = [
            one
            for one in self._places
            if one.read(byte, entered, may_start=may_start, may_end=may_end)
        ]
        self._enter(entered)

    def _enter(self, ways: Iterable[Way]) -> None:
        left, seen = [*ways], set[int]()
        while left:
            way = left.pop()
            if id(way) in seen:
                continue
            seen.add(id(way))
            if way is Other.UNKNOWN:
                self._is_lost = True
            elif way is Other.END:
                self._places.append(AtEnd())
            elif isinstance(way, Text):
                self._places.append(InText(way))
            elif not way.expression:
                left += way.then
            else:
                begin = byte_expression(way.expression).copy()
                if begin.is_complete:
                    left += way.then
                self._places.append(InPattern(way, begin))
