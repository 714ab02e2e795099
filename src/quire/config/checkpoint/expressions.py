"""`Expressions`: the regular expressions of a checkpoint's file, matched in limited time.

Files have expressions for Python's `re`. Some of them take exponential time there, and meanwhile
no other thread of the process runs. This module reads the same syntax with Python's own parser and
follows all ways through an expression at once, from its end to its beginning: so one pass finds all
places where a lookahead holds. `re` finds single characters, texts and borders only.
Backreferences, lookbehind, flags, atomic groups and possessive repeats are refused.
"""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from collections.abc import Callable
from itertools import groupby
from typing import Any

from quire.errors import CheckpointError, quoted

_MAX_EXPRESSIONS = 4096
_MAX_CHARS = 4096
_MAX_CHARS_OF_ALL = 65_536
"""Each takes memory and some time before anything is matched."""
_MAX_NAME = 1000
"""Characters of a name; the longest that are published have about 100."""
_FREE_STEPS = 300
"""Steps of all matches of a name that are not counted."""
_MAX_STEPS = 200_000
"""Further steps of all matches together, a microsecond or a few each."""

_DOT = re.compile(r"\.")
_parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")


class Expressions:
    """The expressions of one file. `where`: the file and field for errors, which are all
    CheckpointErrors."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._known: dict[str, _Step] = {}
        self._name = _Name("")
        self._steps_left = _MAX_STEPS
        self._chars_left = _MAX_CHARS_OF_ALL

    def match(self, expression: str, name: str) -> bool:
        """Whether the beginning of a name matches, as in `re.match`."""
        run = self._named(name)
        return self._starts(expression, run, run.everywhere) >> len(name) != 0

    def match_end(self, expression: str, name: str) -> bool:
        """Whether the whole name matches, or all of it after one of its dots."""
        run = self._named(name)
        wanted = 1 << len(name) | run.places(_DOT) >> 1
        return self._starts(expression, run, 1) & wanted != 0

    def check(self, expression: str) -> None:
        """Raises CheckpointError for an expression that is wrong or not supported."""
        if expression not in self._known:
            self._known[expression] = self._read(expression)

    def _starts(self, expression: str, name: _Name, ends: int) -> int:
        """The positions at which matches begin that end at `ends`."""
        self.check(expression)
        name.steps_left = self._steps_left + name.free_steps
        try:
            starts = self._known[expression](name, ends)
        except (_TooLongError, RecursionError):
            raise self._error(expression, f"takes too long to match {quoted(name.text)}") from None
        name.free_steps = max(0, name.steps_left - self._steps_left)
        self._steps_left = min(self._steps_left, name.steps_left)
        return starts

    def _named(self, name: str) -> _Name:
        """The last name, whose sets of positions are kept, or another."""
        known = self._name
        if name == known.text:
            return known
        if len(name) > _MAX_NAME:
            raise CheckpointError(
                f"{self._where}: a name must have at most {_MAX_NAME} characters to be matched "
                f"with regular expressions, got {quoted(name)}"
            )
        self._name = known = _Name(name)
        return known

    def _read(self, expression: str) -> _Step:
        if len(expression) > _MAX_CHARS:
            raise self._error(expression, f"must have at most {_MAX_CHARS} characters")
        if len(self._known) >= _MAX_EXPRESSIONS:
            raise CheckpointError(
                f"{self._where} must have at most {_MAX_EXPRESSIONS} regular expressions"
            )
        self._chars_left -= len(expression)
        if self._chars_left < 0:
            raise CheckpointError(
                f"{self._where}: all regular expressions together must have at most "
                f"{_MAX_CHARS_OF_ALL} characters"
            )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # such as "Possible nested set"
                parsed = _parser.parse(expression)
            if parsed.state.flags & ~re.UNICODE:
                raise _UnsupportedError("flags such as (?i)")
            return _sequence(parsed)
        except _UnsupportedError as error:
            raise self._error(
                expression, f"must not have {error}; groups, alternatives, repeats, classes and "
                r"lookahead are supported, such as model\.layers\.[0-3]\..*"
            ) from None  # fmt: skip
        except RecursionError:
            raise self._error(expression, "has too many groups in each other") from None
        except (re.error, OverflowError) as error:
            raise self._error(expression, f"is not valid: {error}") from None

    def _error(self, expression: str, what: str) -> CheckpointError:
        return CheckpointError(f"{self._where}: the expression {quoted(expression)} {what}")


class _UnsupportedError(Exception):
    """An expression has something that is not supported."""


class _TooLongError(Exception):
    """The steps are used up."""


class _Name:
    """A name that is matched. A set of its positions is a number: bit i stands for the position
    before its last i characters."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.everywhere = (2 << len(text)) - 1
        self.steps_left = 0
        self.free_steps = _FREE_STEPS
        self._places: dict[str, int] = {}

    def spend(self) -> None:
        """Counts a step. Raises _TooLongError if none is left."""
        self.steps_left -= 1
        if self.steps_left < 0:
            raise _TooLongError

    def places(self, pattern: re.Pattern[str]) -> int:
        """The positions at which a pattern of at most one character matches."""
        found = self._places.get(pattern.pattern)
        if found is None:
            found, size = 0, len(self.text)
            self.steps_left -= size // 50
            for match in pattern.finditer(self.text):
                found |= 1 << size - match.start()
            self._places[pattern.pattern] = found
        return found


_Step = Callable[[_Name, int], int]
"""Gives the positions before a part of an expression, for those after it."""


def _sequence(parsed: Any) -> _Step:
    steps: list[_Step] = []
    texts: list[str] = []
    for is_text, items in groupby(parsed, lambda item: item[0].name == "LITERAL"):
        if is_text:
            texts.append("".join(chr(code) for _, code in items))
            steps.append(_text(texts[-1]))
        else:
            steps += [_part(op.name, value) for op, value in items]
    steps.reverse()

    def step(name: _Name, ends: int) -> int:
        for text in texts:  # most names lack one
            if text not in name.text:
                return 0
        name.spend()
        for one in steps:
            name.spend()
            ends = one(name, ends)
            if not ends:
                break
        return ends

    return step


def _part(op: str, value: Any) -> _Step:
    match op:
        case "ANY":
            return _simple(".", 1)
        case "NOT_LITERAL":
            return _simple(f"[^{re.escape(chr(value))}]", 1)
        case "IN":
            return _simple(f"[{''.join(_member(one.name, inner) for one, inner in value)}]", 1)
        case "AT":
            return _simple(_NAMED[value.name], 0)
        case "FAILURE":
            return lambda _name, _ends: 0
        case "BRANCH":
            return _branch([_sequence(one) for one in value[1]])
        case "SUBPATTERN" if not (value[1] or value[2]):
            return _sequence(value[3])
        case "SUBPATTERN":
            raise _UnsupportedError("flags such as (?i:)")
        case "MAX_REPEAT" | "MIN_REPEAT":
            return _repeat(*value)
        case "ASSERT" | "ASSERT_NOT" if value[0] > 0:
            return _lookahead(_sequence(value[1]), wanted=op == "ASSERT")
        case "ASSERT" | "ASSERT_NOT":
            raise _UnsupportedError("lookbehind")
    raise _UnsupportedError(op.lower().replace("_", " "))


def _simple(source: str, width: int) -> _Step:
    """Step over `width` characters from where `source` matches."""
    pattern = re.compile(source)
    return lambda name, ends: ends << width & name.places(pattern)


def _text(text: str) -> _Step:
    rest = f"(?={re.escape(text[1:])})" if text[1:] else ""  # occurrences may overlap
    return _simple(re.escape(text[0]) + rest, len(text))


def _member(op: str, value: Any) -> str:
    """A part of a class of characters."""
    match op:
        case "NEGATE":
            return "^"
        case "LITERAL":
            return re.escape(chr(value))
        case "RANGE":
            return "-".join(re.escape(chr(code)) for code in value)
    return _NAMED[value.name]


_NAMED = {
    "AT_BEGINNING": r"\A", "AT_BEGINNING_STRING": r"\A", "AT_END": "$", "AT_END_STRING": r"\Z",
    "AT_BOUNDARY": r"\b", "AT_NON_BOUNDARY": r"\B",
    "CATEGORY_DIGIT": r"\d", "CATEGORY_NOT_DIGIT": r"\D", "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S", "CATEGORY_WORD": r"\w", "CATEGORY_NOT_WORD": r"\W",
}  # fmt: skip


def _branch(ways: list[_Step]) -> _Step:
    def step(name: _Name, ends: int) -> int:
        found = 0
        for way in ways:
            name.spend()
            found |= way(name, ends)
        return found

    return step


def _repeat(least: int, most: int, parsed: Any) -> _Step:
    body = _sequence(parsed)
    is_run = most == _parser.MAXREPEAT and parsed.getwidth() == (1, 1)

    def step(name: _Name, ends: int) -> int:
        for _ in range(least):
            name.spend()
            ends = body(name, ends)
            if not ends:
                return 0
        if is_run:
            # A sum carries the bit of an end to the end of its run of characters.
            chars = body(name, name.everywhere) >> 1
            return ((ends & chars) + chars ^ chars) | ends
        new, left = ends, most - least
        while new and left:
            new = body(name, new) & ~ends
            ends |= new
            left -= 1
        return ends

    return step


def _lookahead(body: _Step, *, wanted: bool) -> _Step:
    def step(name: _Name, ends: int) -> int:
        found = body(name, name.everywhere)
        return ends & (found if wanted else ~found)

    return step
