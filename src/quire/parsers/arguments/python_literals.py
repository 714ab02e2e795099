"""Reads Python literals in the text of a model as they arrive and emits them as JSON.

A hand-written parser: nothing is evaluated, time is linear, and depth is bounded. Tuples and sets
become arrays. A word that is not a literal becomes a string. A quote ends a string only if the text
after it allows that, because models forget to escape quotes within strings.
"""

from __future__ import annotations

import json
import math
import re
import string

from quire.parsers.reader import Emit, Parse, TextReader

MAX_DEPTH = 64
_STRING = re.compile(r"[rRbBfFuU]{0,2}['\"]")
_QUOTES = ('"""', "'''", '"', "'")
_PREFIX = "rRbBfFuU"
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_SCALAR_END = re.compile(r"[,\]})(\[{:=\"']")
_NAME = string.ascii_letters + string.digits + "_"
_MOST_NAME = 64
_NEVER_AFTER_CALL = "\"'):}"
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}
_ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "0": "\0",
    "\\": "\\", "'": "'", '"': '"', "\n": "",
}  # fmt: skip
_BY_CODE = {"x": 2, "u": 4, "U": 8}
_HEX = "0123456789abcdefABCDEF"


def json_of_literal(text: str) -> str | None:
    """Convert a whole literal (list, tuple or dict) to JSON; None if the text is not one."""
    if text[:1] not in ("[", "{", "("):
        return None
    reader, parts = TextReader(), list[str]()
    reader.push(text)
    reader.end()
    parse = _whole(reader, parts.append)
    try:
        next(parse)
    except StopIteration as stopped:
        return "".join(parts) if stopped.value else None
    return None


def _whole(reader: TextReader, emit: Emit) -> Parse[bool]:
    is_read = yield from python_value(reader, emit)
    return is_read and not (yield from reader.skip_space())


def python_value(reader: TextReader, emit: Emit, open_brackets: str = "") -> Parse[bool]:
    """Reads one value and passes its JSON text to `emit`. False if it is missing, broken, cut short
    or nested too deeply. `open_brackets`: closing brackets that are still expected, innermost
    first."""
    char = yield from reader.skip_space()
    if char in _CLOSING:
        if len(open_brackets) > MAX_DEPTH:
            return False
        read = _dict if char == "{" else _list
        return (yield from read(reader, emit, _CLOSING[char] + open_brackets))
    if (yield from _is_string(reader)):
        return (yield from _string(reader, emit, open_brackets))
    return (yield from _scalar(reader, emit))


def _is_string(reader: TextReader) -> Parse[bool]:
    while True:
        text = reader.available()[:3]
        if _STRING.match(text):
            return True
        if len(text) > 2 or text.strip(_PREFIX) or not (yield from reader.more()):
            return False


def _string(reader: TextReader, emit: Emit, open_brackets: str) -> Parse[bool]:
    """Reads a string with its prefix and quotes; passes the JSON string to `emit`."""
    is_raw = "r" in (yield from reader.while_in(_PREFIX, 2)).lower()
    quote = yield from reader.literal(*_QUOTES)
    if quote in ('""', None):
        return False
    emit('"')
    while True:
        found = yield from reader.until((quote, "\\"), lambda text: emit(_escaped(text)))
        if found is None:
            return False
        if found == "\\":
            yield from _escape(reader, emit, is_raw=is_raw)
        elif len(quote) > 1 or (yield from _is_end(reader, open_brackets)):
            break
        else:
            emit(_escaped(quote))
    emit('"')
    return True


def _is_end(reader: TextReader, open_brackets: str) -> Parse[bool]:
    """Whether the quote just read ends its string."""
    reader.record()
    can_follow = yield from _can_follow(reader, open_brackets)
    reader.unread(reader.recorded())
    return can_follow


def _can_follow(reader: TextReader, open_brackets: str) -> Parse[bool]:
    """Whether the coming text can follow a string: the expected closing brackets, then a comma. If
    only the bracket of the call is still open, an argument name must follow the comma."""
    count = 0
    char = yield from reader.skip_space()
    while char and char == open_brackets[count : count + 1]:
        reader.take(1)
        count += 1
        char = yield from reader.skip_space()
    if not char:
        return True
    if count and count == len(open_brackets):
        return char not in _NEVER_AFTER_CALL
    if char == ":":
        return not count
    return char == "," and (open_brackets[count:] != ")" or (yield from _is_next_argument(reader)))


def _is_next_argument(reader: TextReader) -> Parse[bool]:
    reader.take(1)
    if (yield from reader.skip_space()) in ("", ")"):
        return True
    name = yield from reader.while_in(_NAME, _MOST_NAME)
    return bool(name) and (yield from reader.skip_space()) in ("", "=")


def _escape(reader: TextReader, emit: Emit, *, is_raw: bool) -> Parse[None]:
    """Reads what follows a backslash."""
    char = yield from reader.next_char()
    reader.take(len(char))
    if is_raw or char not in _BY_CODE:
        value = None if is_raw else _ESCAPES.get(char)
        emit(_escaped("\\" + char if value is None else value))
        return
    size = _BY_CODE[char]
    digits = yield from reader.while_in(_HEX, size)
    code = int(digits, 16) if len(digits) == size else -1
    if 0xD800 <= code <= 0xDFFF:
        emit(f"\\u{code:04x}")  # half of a surrogate pair; in JSON the other half completes it
    else:
        emit(_escaped(chr(code) if 0 <= code <= 0x10FFFF else f"\\{char}{digits}"))


def _scalar(reader: TextReader, emit: Emit) -> Parse[bool]:
    parts: list[str] = []
    while (end := reader.find(_scalar_end)) < 0:
        parts.append(reader.take(len(reader.available())))
        if not (yield from reader.more()):
            return False
    parts.append(reader.take(end))
    word = "".join(parts).strip()
    if word:
        emit(scalar(word))
    return bool(word)


def _scalar_end(text: str, at: int) -> int:
    found = _SCALAR_END.search(text, at)
    return found.start() if found else -1


def scalar(word: str) -> str:
    """Convert a number, a constant or a bare word to JSON."""
    known = _WORDS.get(word.lower())
    if known is not None:
        return known
    plain = word.replace("_", "") if word[:1] in "+-.0123456789" else ""
    try:
        if _NUMBER.fullmatch(plain) and math.isfinite(float(plain)):
            return plain
        if plain.lstrip("+-0").isdecimal():
            return str(int(plain))
        if math.isfinite(number := float(plain)):
            return repr(number)
    except (ValueError, OverflowError):
        pass
    try:
        return str(int(plain, 0))
    except ValueError:
        return json.dumps(word, ensure_ascii=False)


def _list(reader: TextReader, emit: Emit, open_brackets: str) -> Parse[bool]:
    reader.take(1)
    emit("[")
    return (yield from _rest_of_list(reader, emit, open_brackets, count=0))


def _rest_of_list(reader: TextReader, emit: Emit, open_brackets: str, count: int) -> Parse[bool]:
    """Reads elements up to the closing bracket, after the first `count` elements."""
    closing = open_brackets[0]
    while True:
        char = yield from reader.skip_space()
        if count and char != closing:
            if (yield from reader.literal(",")) is None:
                return False
            char = yield from reader.skip_space()
        if char == closing:
            reader.take(1)
            emit("]")
            return True
        if count:
            emit(", ")
        if not (yield from python_value(reader, emit, open_brackets)):
            return False
        count += 1


def _dict(reader: TextReader, emit: Emit, open_brackets: str) -> Parse[bool]:
    reader.take(1)
    if (yield from reader.skip_space()) == "}":
        reader.take(1)
        emit("{}")
        return True
    count = 0
    while True:
        key: list[str] = []
        if not (yield from python_value(reader, key.append, open_brackets)):
            return False
        if (yield from reader.skip_space()) != ":":
            if count:
                return False
            emit("[" + "".join(key))
            return (yield from _rest_of_list(reader, emit, open_brackets, count=1))
        reader.take(1)
        emit(("{" if not count else ", ") + _key("".join(key)) + ": ")
        if not (yield from python_value(reader, emit, open_brackets)):
            return False
        count += 1
        yield from reader.skip_space()
        is_last = (yield from reader.literal(",")) is None
        char = yield from reader.skip_space()
        if char == "}":
            reader.take(1)
            emit("}")
            return True
        if is_last:
            return False


def _key(value: str) -> str:
    return value if value.startswith('"') else json.dumps(value, ensure_ascii=False)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
