"""What readers of tags share: names, and values up to what ends them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from quire.parsers.arguments.values import Types
from quire.parsers.reader import Emit, Parse, TextReader

_MOST_HEAD = 512
"""Characters of a tag."""
_ATTRIBUTE = re.compile(r"""(\w{1,64})\s{0,8}=\s{0,8}["']([^"']{0,64})["']""")


def up_to(reader: TextReader, end: str, without: str, most: int) -> Parse[str | None]:
    """Reads up to a character, and that; returns what is before it. None if one of `without`
    comes first, which is not read, nothing comes, or more than `most` characters."""
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


def behind_space(reader: TextReader, *texts: str) -> Parse[str | None]:
    """Reads white space and the longest of these texts behind it. None, and nothing is read: none
    of them comes. At the end of a reply the begin of one is dropped, since the reply was cut there.

    Not before a call has begun, since until then all that is read is kept.
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
    """Reads a tag from the name on; returns that and the attributes behind it. The name is empty
    if this is no tag."""
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
    """Reads a value up to one of `ends`, and that, which is returned; None if none comes.

    A value that is no string but an array, an object or a string in JSON may have `ends` in the
    strings in it.
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
