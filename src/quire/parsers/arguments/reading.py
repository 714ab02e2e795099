"""Parts shared by the readers of tags: names, and values up to their end mark."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from quire.parsers.arguments.values import Types
from quire.parsers.reader import Emit, Parse, TextReader

_MOST_HEAD = 512
"""Maximum number of characters in the head of a tag."""
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


def read_value(
    reader: TextReader, ends: Sequence[str], emit: Emit, types: Types
) -> Parse[str | None]:
    """Reads a value through one of `ends`, which is returned; None if none of them comes.

    If the value is an array, an object or a string in JSON, strings within it may contain `ends`.
    """
    if types and "string" not in types and (yield from _begins_json(reader, emit)):
        while (found := (yield from reader.until((*ends, '"'), emit))) == '"':
            emit('"')
            yield from _rest_of_string(reader, emit)
        return found
    return (yield from reader.until(ends, emit))


def _begins_json(reader: TextReader, emit: Emit) -> Parse[bool]:
    while True:
        char = yield from reader.next_char()
        if not char or not char.isspace():
            return char in ("{", "[", '"')
        emit(reader.take(1))


def _rest_of_string(reader: TextReader, emit: Emit) -> Parse[None]:
    while (found := (yield from reader.until(('"', "\\"), emit))) is not None:
        emit(found)
        if found == '"':
            return
        emit(reader.take(len((yield from reader.next_char()))))
