"""`TextReader`: text that arrives in pieces, read as if it were there from the beginning.

What reads it are generators. A bare `yield` means: more text is needed. So a parser is written
straight on, like one for a whole text, and gives the same for any division into pieces: no method
decides before the text, whatever follows, allows only one decision.

The reader keeps what has not been read, which is short: methods take what they can. So the time is
linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Parse = Generator[None, None, T]
"""Yields where more text is needed; returns T."""
Emit = Callable[[str], None]
"""Takes a piece of text."""
WHITE_SPACE = " \t\r\n"


def ignore(text: str) -> None:
    """Takes text that nobody needs."""


@lru_cache(maxsize=256)
def _any_of(chars: frozenset[str]) -> re.Pattern[str]:
    return re.compile(f"[{re.escape(''.join(sorted(chars)))}]")


class TextReader:
    """The text that was not read yet."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self.has_ended = False
        """Whether no text comes after what is here."""
        self.is_cut = False
        """Whether a limit or a stop string ended the text, not the model."""
        self.has_dropped = False
        """Whether the end of a text that was cut was dropped."""
        self.ran_out = False
        """Whether more text was needed after the last one; readers of calls reset it."""
        self.num_read = 0
        """Characters."""
        self._record: list[str] | None = None

    def push(self, text: str) -> None:
        """Text that arrived."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self, *, is_cut: bool = False) -> None:
        """Nothing more arrives. `is_cut`: the model would have written more."""
        self.has_ended, self.is_cut = True, is_cut

    def record(self) -> None:
        """Begins to keep what is read, until `recorded` takes it."""
        self._record = []

    def recorded(self) -> str:
        """What was read since `record`; keeping ends."""
        parts, self._record = self._record or [], None
        return "".join(parts)

    def available(self) -> str:
        """The text that is here."""
        return self._text[self._at :]

    def find(self, wanted: Callable[[str, int], int]) -> int:
        """How many characters before what `wanted` finds, which gets the text and where to begin,
        and returns a position or -1."""
        found = wanted(self._text, self._at)
        return -1 if found < 0 else found - self._at

    def take(self, count: int) -> str:
        """Reads as many characters, which are here."""
        begin = self._at
        self._at = begin + count
        self.num_read += count
        text = self._text[begin : self._at]
        if self._record is not None:
            self._record.append(text)
        return text

    def unread(self, text: str) -> None:
        """Puts text that was read back, to be read again. Not while `record` keeps it."""
        self.num_read -= len(text)
        if self._text.endswith(text, 0, self._at):
            self._at -= len(text)
        else:
            self._text, self._at = text + self._text[self._at :], 0

    def more(self) -> Parse[bool]:
        """Waits for more text than there is. False: there is none."""
        had = len(self._text) - self._at
        while len(self._text) - self._at == had:
            if self.has_ended:
                self.ran_out = True
                return False
            yield
        return True

    def drop_cut(self, markers: Sequence[str], least: int = 2) -> bool:
        """Drops the rest of a text that was cut within one of these markers; False if there is
        none. A word, or fewer than `least` characters, may as well be text, and stays."""
        rest = self.available() if self.has_ended and self.is_cut else ""
        is_cut = len(rest) >= least and not rest[0].isalnum()
        is_cut = is_cut and any(one.startswith(rest) and one != rest for one in markers)
        if is_cut:
            self.drop_rest()
        return is_cut

    def drop_rest(self) -> None:
        """Drops what is left of a text that was cut."""
        self.take(len(self._text) - self._at)
        self.has_dropped = True

    def next_char(self) -> Parse[str]:
        """The next character, which is not read; empty at the end."""
        while self._at == len(self._text):
            if not (yield from self.more()):
                return ""
        return self._text[self._at]

    def skip_space(self) -> Parse[str]:
        """Reads white space. Returns the character that follows; empty at the end."""
        while True:
            char = yield from self.next_char()
            if not char or char not in WHITE_SPACE:
                return char
            rest = self.available()
            self.take(len(rest) - len(rest.lstrip(WHITE_SPACE)))

    def starts_with(self, *texts: str) -> Parse[str | None]:
        """The longest of these that comes next, which is not read; None if it is none of them."""
        return (yield from self._match(0, texts))

    def literal(self, *texts: str) -> Parse[str | None]:
        """Reads the longest of these that comes next. None, and nothing is read: none of them. A
        part of one with which the text was cut is dropped."""
        found = yield from self._match(0, texts)
        if self.is_cut and found != self.available() and self.drop_cut(texts, least=1):
            return None
        if found is not None:
            self.take(len(found))
        return found

    def until(
        self, markers: Sequence[str], emit: Emit = ignore, *, least_cut: int = 2
    ) -> Parse[str | None]:
        """Reads up to the first of these markers, and the marker. What is before it goes to `emit`.

        Where several begin at one place, the longest counts. Returns the marker; None if none
        comes: then all of the text went to `emit`, except a marker within which it was cut, if
        there are `least_cut` characters of it.
        """
        firsts = _any_of(frozenset(marker[0] for marker in markers)) if markers else None
        while True:
            text, at = self._text, self._at
            found = firsts.search(text, at) if firsts else None
            place = found.start() if found else len(text)
            if place > at:
                emit(self.take(place - at))
                continue
            if at == len(text):
                if not (yield from self.more()):
                    return None
                continue
            marker = yield from self._match(0, markers)
            if marker is not None:
                self.take(len(marker))
                return marker
            if not self.drop_cut(markers, least_cut):
                emit(self.take(1))

    def while_in(self, chars: str, most: int) -> Parse[str]:
        """Reads characters as long as they are of these, and no more than `most`."""
        parts: list[str] = []
        while len(parts) < most:
            char = yield from self.next_char()
            if not char or char not in chars:
                break
            parts.append(self.take(1))
        return "".join(parts)

    def _match(self, offset: int, texts: Sequence[str]) -> Parse[str | None]:
        """The longest of these at `offset`, once nothing that follows can change it."""
        while True:
            at = self._at + offset
            rest = len(self._text) - at
            found = max(
                (one for one in texts if self._text.startswith(one, at)), key=len, default=None
            )
            may_grow = any(
                len(one) > rest and one.startswith(self._text[at:])
                for one in texts
                if found is None or len(one) > len(found)
            )
            if not may_grow or not (yield from self.more()):
                return found
