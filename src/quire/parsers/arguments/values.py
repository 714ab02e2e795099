"""Values written as text without their type: the tool's JSON schema determines the type.

A string value is the text itself. Any other value is JSON or almost JSON (`True`, `+5`). Text that
is neither becomes a string, so that nothing is lost.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Literal, NamedTuple

from quire.parsers.arguments.python_literals import json_of_literal
from quire.parsers.reader import WHITE_SPACE, Emit
from quire.structured.schemas.places import TYPE_NAMES, type_of

Types = frozenset[str]
"""JSON schema types that a value may have."""
TEXT: Types = frozenset({"string"})
NOT_TEXT: Types = frozenset({"integer", "number", "boolean", "null", "object", "array"})
ANY: Types = frozenset()
"""Unknown type: JSON if the text is valid JSON, otherwise a string."""
Trim = Literal["", "line", "space"]
"""Markup to remove at both ends of a text: nothing, one line break, or white space."""

_STREAMED = (TEXT, frozenset({"string", "null"}))
CONTAINERS = frozenset({"object", "array"})
_WHOLE = re.compile(r"[+-]?[0-9]{1,300}")


class Form(NamedTuple):
    """Possible values."""

    types: Types = ANY
    words: frozenset[str] = frozenset()
    """Strings of an `enum`. A text that is one of these is a string, whatever else it may be."""


def type_named(name: str) -> Types:
    """The type for a name that templates write, such as `array[string]`."""
    name = name.split("[", 1)[0].strip().lower()
    return frozenset({TYPE_NAMES.get(name, name)}) & (TEXT | NOT_TEXT)


def converted(text: str, form: Form) -> str:
    """Convert the text of a value to JSON."""
    types = form.types
    if types == TEXT or text in form.words:
        return json_text(text)
    word = text.strip()
    lower = word.lower()
    if "null" in types and lower in ("null", "none"):
        return "null"
    kind = _kind(word)
    if kind in types or (kind == "integer" and "number" in types) or (kind and not types):
        return word
    if "boolean" in types and lower in ("true", "false"):
        return lower
    if "boolean" in types and "string" not in types and word in ("0", "1"):
        return "true" if word == "1" else "false"
    if number := _number(word, types):
        return number
    if (not types or types & CONTAINERS) and (literal := json_of_literal(word)) is not None:
        return literal
    return word if kind and "string" not in types else json_text(text)


def json_text(text: str) -> str:
    """Encode a string as JSON."""
    return json.dumps(text, ensure_ascii=False)


def _kind(text: str) -> str:
    """The type of a JSON text; empty if it is not JSON or contains a number that is not finite."""
    try:
        return type_of(json.loads(text, parse_constant=_refused, parse_float=_finite))
    except (ValueError, RecursionError):
        return ""


def _refused(text: str) -> Any:
    raise ValueError(text)


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number


def _number(word: str, types: Types) -> str:
    """A number whose text is not JSON, such as `+5`; empty if the text is not a number."""
    if types & {"integer", "number"} and _WHOLE.fullmatch(word):
        return str(int(word))
    if "number" in types:
        try:
            return repr(_finite(word))
        except ValueError:
            return ""
    return ""


class ValueWriter:
    """Writes one value as JSON while its text arrives. Strings are streamed."""

    def __init__(self, emit: Emit, form: Form, trim: Trim) -> None:
        """`emit` receives the JSON text."""
        self._emit, self._form = emit, form
        self.trim = trim
        self._parts: list[str] = []
        """Text not emitted yet: all of it, or the end of it, which `trim` may remove."""
        self._is_streamed = False
        self._is_at_start = True

    def take(self, text: str) -> None:
        """Add the next part of the text."""
        if self._is_at_start:
            text = text.lstrip(WHITE_SPACE) if self.trim == "space" else text
            if not text:
                return
            self._is_at_start = False
            text = text.removeprefix("\n") if self.trim == "line" else text
        if not self._is_streamed:
            self._parts.append(text)
            if self._form.types not in _STREAMED or not self._is_surely_text():
                return
            self._is_streamed = True
            self._emit('"')
            text = "".join(self._parts)
            self._parts.clear()
        self._pass_on(text)

    def end(self) -> None:
        """Finish the value: the text is complete."""
        rest = self._cut("".join(self._parts))
        if self._is_streamed:
            self._emit(_escaped(rest) + '"')
        else:
            self._emit(converted(rest, self._form))

    def _is_surely_text(self) -> bool:
        """Whether a value that may be a string or null is certainly a string."""
        if self._form.types == TEXT:
            return True
        text = "".join(self._parts)
        return len(text) > 8 or not any(
            word.startswith(text.strip().lower()) for word in ("null", "none")
        )

    def _pass_on(self, text: str) -> None:
        sure = self._cut(text)
        if sure or (text and self.trim == "line"):
            self._emit(_escaped("".join(self._parts) + sure))
            self._parts.clear()
        self._parts.append(text[len(sure) :])

    def _cut(self, text: str) -> str:
        """Remove trailing white space that `trim` counts as markup."""
        if self.trim == "line":
            return text.removesuffix("\n")
        return text.rstrip(WHITE_SPACE) if self.trim == "space" else text


def _escaped(text: str) -> str:
    return json_text(text)[1:-1]
