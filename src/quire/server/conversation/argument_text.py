"""`InputText`: the arguments of a call, as text of a JSON object.

A model may write anything, and clients end with an error where this is no JSON. So what is passed
on is the beginning of an object, whatever comes: characters that a string may not hold are escaped,
and what follows a mistake is left out. Nothing is built of the values.
"""

from __future__ import annotations

import json
import re

_MAX_TOKEN_CHARS = 512
"""Most characters of a key, a number or a word."""
_MAX_NESTING = 100
_SPACE = re.compile(r"[ \t\n\r]*")
_KEY = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_WORD = re.compile(r"[-+.0-9A-Za-z_]+")
_VALUE = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_CLOSERS = {"{": "}", "[": "]"}

_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_UNIT = re.compile(r"\\u[0-9a-fA-F]{4}")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_OPEN_ESCAPE = re.compile(
    r"\\(?:u[0-9a-fA-F]{0,3}|u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u.{0,3})?)?)?"
)
"""An escape that what follows may complete."""
_SHORT_ESCAPES = '"\\/bfnrt'


class InputText:
    """Takes the arguments of one call as they come."""

    def __init__(self) -> None:
        self.is_whole = False
        """The object is closed."""
        self._text = ""
        self._at = 0
        self._wants = "object"
        """Part that comes next: `object`, `key`, `colon`, `value`, `rest` of a string, `comma`."""
        self._may_close = False
        """The innermost bracket may close instead."""
        self._held = ""
        """A comma, a key and a colon: passed on with the value."""
        self._open: list[str] = []
        """The brackets that are open."""
        self._is_broken = False
        self._passed: list[str] = []
        self._num_passed = 0
        self._string_begin = 0
        """Characters passed on before the member that has the open string as its value."""

    def feed(self, text: str) -> str:
        """More arguments; returns more of the object's text."""
        self._text = self._text[self._at :] + text
        self._at, self._passed = 0, []
        while not self._is_broken and not self.is_whole and self._read():
            pass
        if self._is_broken or self.is_whole:
            self._text, self._at = "", 0
        return "".join(self._passed)

    def close(self) -> str:
        """No more arguments come; returns the rest of an object."""
        if self._wants == "object":
            return "{}"
        quote = '"' if self._wants == "rest" else ""
        return quote + "".join(_CLOSERS[bracket] for bracket in reversed(self._open))

    def _read(self) -> bool:
        """Reads one token. False: it is not complete."""
        if self._wants == "rest":
            return self._read_string()
        found = _SPACE.match(self._text, self._at)
        self._at = found.end() if found else self._at
        char = self._text[self._at : self._at + 1]
        if not char:
            return False
        if char in "}]" and self._may_close and char == _CLOSERS[self._open[-1]]:
            return self._close_bracket(char)
        if self._wants == "key":
            return self._read_key(char)
        if self._wants in ("value", "object"):
            return self._read_value(char)
        if char != (":" if self._wants == "colon" else ","):
            return self._break()
        self._held += char
        self._at += 1
        is_in_object = self._open[-1] == "{"
        self._wants = "key" if char == "," and is_in_object else "value"
        self._may_close = char == ","  # which is left out then
        return True

    def _read_key(self, char: str) -> bool:
        found = _KEY.match(self._text, self._at)
        if char != '"':
            return self._break()
        if found is None:
            return self._waits(len(self._text) - self._at)
        if len(found.group()) > _MAX_TOKEN_CHARS:
            return self._break()
        key = InputText()
        key._wants = "rest"
        self._held += '"' + key.feed(found.group()[1:])
        self._at = found.end()
        self._wants, self._may_close = "colon", False
        return True

    def _read_value(self, char: str) -> bool:
        if self._wants == "object" and char != "{":
            return self._break()
        if char in _CLOSERS:
            if len(self._open) == _MAX_NESTING:
                return self._break()
            self._open.append(char)
            self._pass(char, 1)
            self._wants, self._may_close = ("key" if char == "{" else "value"), True
            return True
        if char == '"':
            self._string_begin = self._num_passed
            self._pass(char, 1)
            self._wants = "rest"
            return True
        found = _WORD.match(self._text, self._at)
        word = found.group() if found else ""
        if word and self._at + len(word) == len(self._text):
            return self._waits(len(word))
        if not _VALUE.fullmatch(word) or len(word) > _MAX_TOKEN_CHARS:
            return self._break()
        self._pass(word, len(word))
        self._end_value()
        return True

    def _read_string(self) -> bool:
        found = _PLAIN.match(self._text, self._at)
        if found:
            self._pass(found.group(), len(found.group()))
        char = self._text[self._at : self._at + 1]
        if not char:
            return False
        if char == '"':
            self._pass(char, 1)
            self._end_value()
            return True
        if char != "\\":
            self._pass(json.dumps(char)[1:-1], 1)
            return True
        return self._read_escape()

    def _read_escape(self) -> bool:
        text, at = self._text, self._at
        if _OPEN_ESCAPE.fullmatch(text, at):
            return False
        if pair := _PAIR.match(text, at):
            self._pass(pair.group(), 12)
        elif unit := _UNIT.match(text, at):
            is_half = _SURROGATE.match(text, at) is not None
            self._pass("\\ufffd" if is_half else unit.group(), 6)
        elif text[at + 1] in _SHORT_ESCAPES:
            self._pass(text[at : at + 2], 2)
        else:
            self._pass("" if text[at + 1] == "'" else "\\\\", 1)
        return True

    def _close_bracket(self, char: str) -> bool:
        self._held = ""
        self._open.pop()
        self._pass(char, 1)
        self._end_value()
        self.is_whole = not self._open
        return True

    def _end_value(self) -> None:
        self._wants, self._may_close = "comma", True

    def _pass(self, text: str, num_read: int) -> None:
        text = self._held + text
        self._held = ""
        self._passed.append(text)
        self._num_passed += len(text)
        self._at += num_read

    def _waits(self, num_chars: int) -> bool:
        """For the rest of a token of which so much is here."""
        return self._break() if num_chars > _MAX_TOKEN_CHARS else False

    def _break(self) -> bool:
        self._is_broken = True
        return False


def object_of(passed: str) -> str:
    """The whole object of which this much was passed on; a string that is open, with its key, is
    left out."""
    text = InputText()
    text.feed(passed + " ")
    if text._wants == "rest":
        passed, text._wants = passed[: text._string_begin], "comma"
    return passed + text.close()
