"""`Expressions`: the regular expressions of a checkpoint's file, matched in limited time.

Files have expressions for Python's `re`. Some of them take exponential time there, and meanwhile
no other thread of the process runs. This module reads the same syntax with Python's own parser and
follows all ways through an expression at once. A set of positions is a number: bit i stands for the
position before character i. Backreferences, lookbehind, flags, atomic groups and possessive repeats
are refused.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from functools import lru_cache
from itertools import groupby
from typing import Any

from quire.errors import CheckpointError, quoted

_MAX_EXPRESSIONS = 4096
_MAX_CHARS = 4096
_MAX_NAME = 1000
"""Characters of a name; the longest that are published have about 100."""
_FREE_STEPS = 100
"""Steps of each match that are not counted."""
_MAX_STEPS = 200_000
"""Further steps of all matches together, a microsecond or a few each."""

_PARSER = "re._parser" if sys.version_info >= (3, 11) else "sre_parse"


class Expressions:
    """The expressions of one file. `where`: the file and field for errors, which are all
    CheckpointErrors."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._known: dict[str, _Step] = {}
        self._name = _Name("")
        self._steps_left = _MAX_STEPS

    def match(self, expression: str, name: str) -> bool:
        """Whether the beginning of a name matches, as in `re.match`."""
        return self._ends(expression, name, 1) != 0

    def match_end(self, expression: str, name: str) -> bool:
        """Whether the whole name matches, or all of it after one of its dots."""
        dots = self._named(name).places(".") << 1
        return self._ends(expression, name, 1 | dots) >> len(name) != 0

    def check(self, expression: str) -> None:
        """Raises CheckpointError for an expression that is wrong or not supported."""
        if expression not in self._known:
            self._known[expression] = self._read(expression)

    def _ends(self, expression: str, name: str, starts: int) -> int:
        """The positions at which matches end that begin at `starts`."""
        self.check(expression)
        run = self._named(name)
        run.steps_left = allowed = self._steps_left + _FREE_STEPS
        try:
            ends = self._known[expression](run, starts)
        except (_TooLongError, RecursionError):
            raise self._error(expression, f"takes too long to match {quoted(name)}") from None
        self._steps_left -= max(0, allowed - run.steps_left - _FREE_STEPS)
        return ends

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
        try:
            parsed = importlib.import_module(_PARSER).parse(expression)
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
    """A name that is matched."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.all = (1 << len(text)) - 1
        """The positions before a character."""
        self.steps_left = 0
        self._chars: dict[str, int] = {}
        self._classes: dict[_Class, int] = {}

    def spend(self) -> None:
        """Counts a step. Raises _TooLongError if none is left."""
        self.steps_left -= 1
        if self.steps_left < 0:
            raise _TooLongError

    def places(self, text: str) -> int:
        """The positions before each occurrence of a text."""
        found, at = 0, self.text.find(text)
        while at >= 0:
            found |= 1 << at
            at = self.text.find(text, at + 1)
        return found

    def places_of(self, wanted: _Class) -> int:
        """The positions before each character of a class."""
        found = self._classes.get(wanted)
        if found is None:
            if not self._chars:
                for i, char in enumerate(self.text):
                    self._chars[char] = self._chars.get(char, 0) | 1 << i
            found = sum(places for char, places in self._chars.items() if wanted(char))
            self._classes[wanted] = found
        return found


_Step = Callable[[_Name, int], int]
"""Gives the positions after a part of an expression, for those before it."""
_Class = Callable[[str], bool]


def _sequence(parsed: Any) -> _Step:
    steps: list[_Step] = []
    for is_text, items in groupby(parsed, lambda item: item[0].name == "LITERAL"):
        if is_text:
            steps.append(_text("".join(chr(code) for _, code in items)))
        else:
            steps += [_part(op.name, value) for op, value in items]

    def step(name: _Name, at: int) -> int:
        for one in steps:
            name.spend()
            at = one(name, at)
            if not at:
                break
        return at

    return step


def _part(op: str, value: Any) -> _Step:
    found = _class(op, value)
    if found is not None:
        return lambda name, at: (at & name.places_of(found)) << 1
    read = _PARTS.get(op)
    if read is None:
        raise _UnsupportedError(op.lower().replace("_", " "))
    return read(value)


def _text(text: str) -> _Step:
    return lambda name, at: (at & name.places(text)) << len(text)


def _class(op: str, value: Any) -> _Class | None:
    """Condition on one character; None: the part is not one character."""
    if op == "ANY":
        return _is_any
    if op == "NOT_LITERAL":
        return lambda char: ord(char) != value
    if op != "IN":
        return None
    items = [(one.name, inner) for one, inner in value]
    is_negated = items[0][0] == "NEGATE"
    members = [_MEMBERS[name](inner) for name, inner in items[is_negated:]]
    return lru_cache(256)(lambda char: any(one(char) for one in members) != is_negated)


def _is_any(char: str) -> bool:
    return char != "\n"


_MEMBERS: dict[str, Callable[[Any], _Class]] = {
    "LITERAL": lambda code: lambda char: ord(char) == code,
    "RANGE": lambda ends: lambda char: ends[0] <= ord(char) <= ends[1],
    "CATEGORY": lambda category: _CATEGORIES[category.name],
}
_CATEGORIES: dict[str, _Class] = {
    "CATEGORY_DIGIT": str.isdecimal,
    "CATEGORY_NOT_DIGIT": lambda char: not char.isdecimal(),
    "CATEGORY_SPACE": str.isspace,
    "CATEGORY_NOT_SPACE": lambda char: not char.isspace(),
    "CATEGORY_WORD": lambda char: char.isalnum() or char == "_",
    "CATEGORY_NOT_WORD": lambda char: not (char.isalnum() or char == "_"),
}


def _branch(value: Any) -> _Step:
    ways = [_sequence(one) for one in value[1]]

    def step(name: _Name, at: int) -> int:
        found = 0
        for way in ways:
            found |= way(name, at)
        return found

    return step


def _group(value: Any) -> _Step:
    _, added, removed, parsed = value
    if added or removed:
        raise _UnsupportedError("flags such as (?i:)")
    return _sequence(parsed)


def _repeat(value: Any) -> _Step:
    least, most, parsed = value
    one = _class(parsed[0][0].name, parsed[0][1]) if len(parsed) == 1 else None
    if one is not None and least < 2 and most == importlib.import_module(_PARSER).MAXREPEAT:
        return lambda name, at: _run(name.places_of(one), at, least)
    body = _sequence(parsed)

    def step(name: _Name, at: int) -> int:
        for _ in range(least):
            name.spend()
            at = body(name, at)
            if not at:
                return 0
        new, left = at, most - least
        while new and left:
            new = body(name, new) & ~at
            at |= new
            left -= 1
        return at

    return step


def _run(places: int, at: int, least: int) -> int:
    """The positions after any number of characters of a class, which stand at `places`: a sum
    carries a bit to the end of its run of bits."""
    if least:
        at = (at & places) << 1
    return (((at & places) + places) ^ places) | at


def _lookahead(value: Any, *, wanted: bool) -> _Step:
    direction, parsed = value
    if direction < 0:
        raise _UnsupportedError("lookbehind")
    body = _sequence(parsed)

    def step(name: _Name, at: int) -> int:
        found, left = 0, at
        while left:
            one = left & -left
            left ^= one
            if (body(name, one) != 0) == wanted:
                found |= one
        return found

    return step


def _at(code: Any) -> _Step:
    place = _PLACES.get(code.name)
    if place is None:
        raise _UnsupportedError(code.name.lower().replace("_", " "))
    return lambda name, at: at & place(name)


def _at_end(name: _Name) -> int:
    end = name.all + 1
    return end | end >> 1 if name.text.endswith("\n") else end


def _borders(name: _Name) -> int:
    words = name.places_of(_CATEGORIES["CATEGORY_WORD"])
    return words ^ words << 1


_PLACES: dict[str, Callable[[_Name], int]] = {
    "AT_BEGINNING": lambda _: 1,
    "AT_BEGINNING_STRING": lambda _: 1,
    "AT_END": _at_end,
    "AT_END_STRING": lambda name: name.all + 1,
    "AT_BOUNDARY": _borders,
}
_PARTS: dict[str, Callable[[Any], _Step]] = {
    "BRANCH": _branch,
    "SUBPATTERN": _group,
    "MAX_REPEAT": _repeat,
    "MIN_REPEAT": _repeat,
    "ASSERT": lambda value: _lookahead(value, wanted=True),
    "ASSERT_NOT": lambda value: _lookahead(value, wanted=False),
    "AT": _at,
    "FAILURE": lambda _: _branch((None, ())),
}
