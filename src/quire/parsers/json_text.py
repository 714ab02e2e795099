"""Reads JSON in the text of a model as it arrives: values as written, and strings.

Values are passed on as text, not built. Invalid JSON is read up to where a valid value would end,
so that broken arguments end at their closing brackets or at a tag.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from quire.parsers.reader import Emit, Parse, TextReader

_IN_STRING = re.compile(r'["\\]')
_IN_BRACKETS = re.compile(r'["{}\[\]<]')
_SCALAR_END = re.compile(r"[,}\]:\s<]")
_MAX_KEY_CHARS = 512
"""Maximum length of a string that is read whole: a key or a tool name."""


def json_value(reader: TextReader, emit: Emit) -> Parse[bool]:
    """Reads one value and drops white space before it; passes the text of the value to `emit`.
    Returns False if it is missing or cut short."""
    char = yield from reader.skip_space()
    if not char:
        return False
    if char == '"':
        return (yield from _string(reader, emit))
    if char in "{[":
        return (yield from _brackets(reader, emit))
    if char in ",}]:<":
        return False
    while True:
        end = reader.find(lambda text, at: _place(_SCALAR_END, text, at))
        emit(reader.take(len(reader.available()) if end < 0 else end))
        if end >= 0:
            return True
        if not (yield from reader.more()):
            return False


def json_members(reader: TextReader, read: Callable[[str], Parse[bool]]) -> Parse[bool]:
    """Reads an object; `read` reads the value of a key. Leading white space is skipped. Returns
    False, leaving the rest unread, if there is no object, `read` returns False, or the object is
    broken or cut short."""
    if (yield from reader.skip_space()) != "{":
        return False
    reader.take(1)
    while (yield from reader.skip_space()) != "}":
        key = yield from json_string(reader)
        if key is None or (yield from reader.skip_space()) != ":":
            return False
        reader.take(1)
        if not (yield from read(key)) or not (yield from _separator(reader, "}")):
            return False
    reader.take(1)
    return True


def json_elements(reader: TextReader, read: Callable[[], Parse[bool]]) -> Parse[bool]:
    """Reads a list as `json_members` reads an object; `read` reads one element."""
    if (yield from reader.skip_space()) != "[":
        return False
    reader.take(1)
    while (yield from reader.skip_space()) != "]":
        if not (yield from read()) or not (yield from _separator(reader, "]")):
            return False
    reader.take(1)
    return True


def json_string(reader: TextReader) -> Parse[str | None]:
    """The value of a string; None if it is missing, cut short or too long."""
    parts: list[str] = []
    if not (yield from json_string_value(reader, parts.append)):
        return None
    value = "".join(parts)
    return value if len(value) <= _MAX_KEY_CHARS else None


def json_string_value(reader: TextReader, emit: Emit) -> Parse[bool]:
    """Reads a string and white space before it; passes its value to `emit`. Returns False if it is
    missing or cut short."""
    if (yield from reader.skip_space()) != '"':
        return False
    reader.take(1)
    decoder = _StringDecoder(emit)
    is_whole = yield from _inside_string(reader, decoder.take)
    decoder.end()
    return is_whole


class _StringDecoder:
    """Decodes the inside of a JSON string that arrives in pieces.

    Invalid escapes are kept as written. Half of a surrogate pair becomes U+FFFD.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._rest = ""

    def take(self, text: str) -> None:
        """Add the next part of the text between the quotes."""
        text = self._rest + text
        cut = _complete_length(text)
        self._rest = text[cut:]
        if cut:
            self._emit(_unescaped(text[:cut]))

    def end(self) -> None:
        """Emit the rest: the string is complete or cut short."""
        if self._rest:
            self._emit(_unescaped(self._rest))
            self._rest = ""


_ESCAPE = re.compile(r"(?:\\u[0-9a-fA-F]{4})+|\\(?:u[0-9a-fA-F]{0,3}|.)?", re.DOTALL)
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "\\": "\\", "/": "/", '"': '"'}
_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_LONGEST_OPEN = 12
"""Characters of an escaped surrogate pair, the longest unit that must be complete."""


def _complete_length(text: str) -> int:
    """Length of the prefix that can be decoded without further text."""
    begin = text.find("\\", max(0, len(text) - _LONGEST_OPEN))
    while begin > 0 and text[begin - 1] == "\\":
        begin -= 1
    if begin < 0:
        return len(text)
    half = -1  # position of a high surrogate without its second half yet
    for found in _ESCAPE.finditer(text, begin):
        escape = found.group()
        is_open = escape == "\\" or (escape[1] == "u" and len(escape) < 6)
        if found.end() == len(text) and is_open:
            return half if half >= 0 and half + 6 == found.start() else found.start()
        half = found.end() - 6 if _HIGH_SURROGATE.search(escape) else -1
    return half if half >= 0 and half + 6 == len(text) else len(text)


def _unescaped(text: str) -> str:
    def value(found: re.Match[str]) -> str:
        escape = found.group()
        if escape[1:2] == "u" and len(escape) >= 6:
            units = bytes.fromhex("".join(escape.split("\\u")))
            return units.decode("utf-16-be", "replace")
        return _SHORT.get(escape[1:], escape)

    return _ESCAPE.sub(value, text) if "\\" in text else text


def _separator(reader: TextReader, close: str) -> Parse[bool]:
    """Reads a comma. Returns True also if `close` comes instead, which is not read."""
    char = yield from reader.skip_space()
    if char == ",":
        reader.take(1)
    return char in (",", close)


def _string(reader: TextReader, emit: Emit) -> Parse[bool]:
    emit(reader.take(1))
    if not (yield from _inside_string(reader, emit)):
        return False
    emit('"')
    return True


def _inside_string(reader: TextReader, emit: Emit) -> Parse[bool]:
    """Reads through the closing quote, which is not passed to `emit`."""
    while True:
        end = reader.find(lambda text, at: _place(_IN_STRING, text, at))
        emit(reader.take(len(reader.available()) if end < 0 else end))
        if end < 0:
            if not (yield from reader.more()):
                return False
        elif (char := reader.take(1)) == '"':
            return True
        else:
            emit(char)
            if not (yield from reader.next_char()):
                return False
            emit(reader.take(1))


def _brackets(reader: TextReader, emit: Emit) -> Parse[bool]:
    depth = 0
    while True:
        end = reader.find(lambda text, at: _place(_IN_BRACKETS, text, at))
        if end < 0:
            emit(reader.take(len(reader.available())))
            if not (yield from reader.more()):
                return False
            continue
        emit(reader.take(end))
        char = yield from reader.next_char()
        if char == '"':
            if not (yield from _string(reader, emit)):
                return False
            continue
        if char == "<":  # outside of strings, JSON has no such character
            return False
        emit(reader.take(1))
        depth += 1 if char in "{[" else -1
        if depth == 0:
            return True


def _place(wanted: re.Pattern[str], text: str, at: int) -> int:
    found = wanted.search(text, at)
    return found.start() if found else -1
