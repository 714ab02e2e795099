"""Parts shared by the readers of tags: names, and values up to their end mark."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from quire.parsers.arguments.values import CONTAINERS, Types
from quire.parsers.reader import Emit, Parse, TextReader
from quire.structured.tags.texts import SPACE, any_of, expression

_MOST_HEAD = 512
"""Maximum number of characters in the head of a tag."""
_MOST_NAMES = 32
"""Maximum number of names of arguments by which a begin tag differs from text."""
_ATTRIBUTE = re.compile(r"""(\w{1,64})\s{0,8}=\s{0,8}["']([^"']{0,64})["']""")


def up_to(reader: TextReader, end: str, without: str, most: int) -> Parse[str | None]:
    """Reads through the character `end`; returns the text before it. None if a character of
    `without` comes first (it is not read), the text ends, or the text is longer than `most`
    characters."""
    parts: list[str] = []
    while len(parts) <= most:
        char = yield from reader.next_char()
        if not char or char in without:
            return None
        reader.take(1)
        if char == end:
            return "".join(parts)
        parts.append(char)
    return None


def after_space(reader: TextReader, *texts: str) -> Parse[str | None]:
    """Reads white space and then the longest of `texts` that matches; returns it. Reads nothing and
    returns None if none of them follows. If a reply was cut within one of them, the fragment is
    dropped.

    Call this only after a call has begun: before that, everything that is read is recorded.
    """
    reader.record()
    yield from reader.skip_space()
    space = reader.recorded()
    found = yield from reader.literal(*texts)
    if found is None:
        rest = reader.available() if reader.has_ended else ""
        if rest and any(text.startswith(rest) for text in texts):
            reader.take(len(rest))
        else:
            reader.unread(space)
    return found


def tag_head(reader: TextReader) -> Parse[tuple[str, Mapping[str, str]]]:
    """Reads the rest of a tag, from its name on; returns the name and the attributes. The name is
    empty if this is not a tag."""
    text = yield from up_to(reader, ">", "<\n", _MOST_HEAD)
    if text is None:
        return "", {}
    text = text.strip()
    quote = text[:1]
    if quote not in ("'", '"') or not quote:
        return text, {}
    name, _, rest = text[1:].partition(quote)
    return name.strip(), dict(_ATTRIBUTE.findall(rest))


@dataclass(frozen=True)
class ValueEnds:
    """The texts that end a value."""

    end: str
    """The end tag."""
    next: tuple[str, ...]
    """Texts that may follow the end tag."""
    others: Mapping[str, tuple[str, ...]]
    """Texts that end a value without its end tag, as some models write, and what may follow each;
    nothing: anything."""
    begins: tuple[str, ...] = ()
    """The texts among `others` that begin an argument."""
    name_forms: tuple[str, ...] = ()
    """How the name of an argument, `{name}`, may be written after them."""

    def of_names(self, names: Collection[str]) -> ValueEnds:
        """The same for a tool with these arguments: only they begin. Unchanged if they are none or
        many."""
        if not 0 < len(names) <= _MOST_NAMES:
            return self
        after = tuple(form.replace("{name}", name) for name in names for form in self.name_forms)
        return replace(self, others={**self.others, **dict.fromkeys(self.begins, after)})

    def followers(self, end: str) -> tuple[str, ...]:
        """The texts of which one follows, after white space, where this text ends a string; before
        anything else it is part of the string. Empty: it always ends the string."""
        return self.next if end == self.end else self.others[end]

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts that end a value."""
        return (self.end, *self.others)

    @property
    def excluded(self) -> list[str]:
        """Regular expressions in a grammar that a string must not contain."""
        found = []
        for end in self.texts:
            after = any_of(map(expression, self.followers(end)))
            found.append(expression(end) + (f"{SPACE}*({after})" if after else ""))
        return found


def read_value(reader: TextReader, ends: ValueEnds, emit: Emit, types: Types) -> Parse[str | None]:
    """Reads a value through one of `ends`, which is returned; None if none of them comes.

    If the value is an array, an object or a string in JSON, strings within it may contain `ends`.
    """
    may_be_text = not types or "string" in types
    begins = "[{" if may_be_text else '[{"'
    is_json = (not may_be_text or bool(types & CONTAINERS)) and (
        yield from _begins_json(reader, emit, begins)
    )
    marks = (*ends.texts, *('"' if is_json else ""))
    while (found := (yield from reader.until(marks, emit))) is not None:
        if found == '"':
            emit('"')
            yield from _rest_of_string(reader, emit)
            continue
        after = ends.followers(found) if may_be_text else ()
        space = (yield from space_before(reader, *after)) if after else None
        if space is None:
            return found
        emit(found + space)
    return None


def space_before(reader: TextReader, *texts: str) -> Parse[str | None]:
    """Reads white space. None if one of these texts follows, or as much of one as there is before
    the end of the reply; otherwise the white space."""
    reader.record()
    yield from reader.skip_space()
    space = reader.recorded()
    if (yield from reader.starts_with(*texts)) is not None:
        return None
    rest = reader.available()
    is_end = reader.has_ended and any(text.startswith(rest) for text in texts)
    return None if is_end else space


def _begins_json(reader: TextReader, emit: Emit, begins: str) -> Parse[bool]:
    while True:
        char = yield from reader.next_char()
        if not char or not char.isspace():
            return bool(char) and char in begins
        emit(reader.take(1))


def _rest_of_string(reader: TextReader, emit: Emit) -> Parse[None]:
    while (found := (yield from reader.until(('"', "\\"), emit))) is not None:
        emit(found)
        if found == '"':
            return
        emit(reader.take(len((yield from reader.next_char()))))
