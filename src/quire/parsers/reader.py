"""`TextReader`: reads text that arrives in pieces as if it were complete.

Its readers are generators; a bare `yield` means that more text is needed. A parser is therefore
written like one for a complete text, and gives the same result for any split into pieces: no method
decides before the text allows only one decision, whatever follows.

The reader keeps only unread text, which is short because methods consume as much as they can. Time
is therefore linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Parse = Generator[None, None, T]
"""Yields when more text is needed; returns T."""
Emit = Callable[[str], None]
"""Receives a piece of text."""
WHITE_SPACE = " \t\r\n"


def ignore(text: str) -> None:
    """Discards the text."""


@lru_cache(maxsize=256)
def _any_of(chars: frozenset[str]) -> re.Pattern[str]:
    return re.compile(f"[{re.escape(''.join(sorted(chars)))}]")


class TextReader:
    """Text that has arrived and is not read yet."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self.has_ended = False
        """Whether no more text will arrive."""
        self.is_cut = False
        """Whether a limit or a stop string ended the text, not the model."""
        self.has_dropped = False
        """Whether an unfinished end of the text was dropped."""
        self.ran_out = False
        """Whether a method needed text after the end; readers of calls reset it."""
        self.num_read = 0
        """Number of characters read."""
        self._record: list[str] | None = None

    def push(self, text: str) -> None:
        """Add text that has arrived."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self, *, is_cut: bool = False) -> None:
        """Mark the end of the text. `is_cut`: the model would have written more."""
        self.has_ended, self.is_cut = True, is_cut

    def record(self) -> None:
        """Start to record text that is read, until `recorded` is called."""
        self._record = []

    def recorded(self) -> str:
        """Return the text read since `record`, and stop recording."""
        parts, self._record = self._record or [], None
        return "".join(parts)

    def available(self) -> str:
        """The unread text that has arrived."""
        return self._text[self._at :]

    def find(self, wanted: Callable[[str, int], int]) -> int:
        """Number of characters before the match of `wanted`, which gets the text and a start
        position and returns a position or -1. -1 without a match."""
        found = wanted(self._text, self._at)
        return -1 if found < 0 else found - self._at

    def take(self, count: int) -> str:
        """Reads `count` characters, which must have arrived."""
        begin = self._at
        self._at = begin + count
        self.num_read += count
        text = self._text[begin : self._at]
        if self._record is not None:
            self._record.append(text)
        return text

    def unread(self, text: str) -> None:
        """Puts back text that was read. Must not be called between `record` and `recorded`."""
        self.num_read -= len(text)
        if self._text.endswith(text, 0, self._at):
            self._at -= len(text)
        else:
            self._text, self._at = text + self._text[self._at :], 0

    def more(self) -> Parse[bool]:
        """Waits for more text. Returns False at the end of the text."""
        had = len(self._text) - self._at
        while len(self._text) - self._at == had:
            if self.has_ended:
                self.ran_out = True
                return False
            yield
        return True

    def drop_cut(self, markers: Sequence[str], least: int = 2) -> bool:
        """Drops the rest of a text that was cut within one of these markers; returns False
        otherwise. A rest that begins with a letter or digit, or is shorter than `least`, may be
        ordinary text and stays."""
        rest = self.available() if self.has_ended and self.is_cut else ""
        is_cut = len(rest) >= least and not rest[0].isalnum()
        is_cut = is_cut and any(one.startswith(rest) and one != rest for one in markers)
        if is_cut:
            self.drop_rest()
        return is_cut

    def drop_rest(self) -> None:
        """Drops the unread rest of a text that was cut."""
        self.take(len(self._text) - self._at)
        self.has_dropped = True

    def next_char(self) -> Parse[str]:
        """The next character, without reading it; empty at the end."""
        while self._at == len(self._text):
            if not (yield from self.more()):
                return ""
        return self._text[self._at]

    def skip_space(self) -> Parse[str]:
        """Reads white space. Returns the character that follows, without reading it; empty at the
        end."""
        while True:
            char = yield from self.next_char()
            if not char or char not in WHITE_SPACE:
                return char
            rest = self.available()
            self.take(len(rest) - len(rest.lstrip(WHITE_SPACE)))

    def starts_with(self, *texts: str) -> Parse[str | None]:
        """The longest of `texts` that follows, without reading it; None if none follows. Waits for
        more text only while it can change the result."""
        while True:
            rest = len(self._text) - self._at
            found = max(
                (one for one in texts if self._text.startswith(one, self._at)),
                key=len,
                default=None,
            )
            may_grow = any(
                len(one) > rest and one.startswith(self._text[self._at :])
                for one in texts
                if found is None or len(one) > len(found)
            )
            if not may_grow or not (yield from self.more()):
                return found

    def literal(self, *texts: str) -> Parse[str | None]:
        """Reads the longest of `texts` that follows. Returns None and reads nothing if none
        follows. If the text was cut within one of them, the rest is dropped."""
        found = yield from self.starts_with(*texts)
        if self.is_cut and found != self.available() and self.drop_cut(texts, least=1):
            return None
        if found is not None:
            self.take(len(found))
        return found

    def until(
        self, markers: Sequence[str], emit: Emit = ignore, *, least_cut: int = 2
    ) -> Parse[str | None]:
        """Reads through the first of these markers; passes the text before it to `emit`.

        If several markers match at one position, the longest is taken. Returns the marker, or None
        at the end of the text: then all text went to `emit`, except at least `least_cut` characters
        of a marker within which the text was cut.
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
            marker = yield from self.starts_with(*markers)
            if marker is not None:
                self.take(len(marker))
                return marker
            if not self.drop_cut(markers, least_cut):
                emit(self.take(1))

    def while_in(self, chars: str, most: int) -> Parse[str]:
        """Reads characters while they are in `chars`, at most `most` of them."""
        parts: list[str] = []
        while len(parts) < most:
            char = yield from self.next_char()
            if not char or char not in chars:
                break
            parts.append(self.take(1))
        return "".join(parts)
