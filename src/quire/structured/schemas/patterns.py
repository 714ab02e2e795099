"""`rust_pattern`: a `pattern` of a JSON schema in llguidance's notation, that of Rust's `regex`.

JSON Schema's is that of ECMA 262. What both have with different meanings is written out: white
space, the dot, and characters that have a meaning in the classes of Rust alone. pydantic's patterns
of decimal numbers get a form without look-ahead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_SPACE = r"[^\S\x85]\x{feff}"
r"""The `\s` of ECMA 262, within a class: Rust's, without U+0085, and the byte order mark."""
_DOT = r"[^\n\r\x{2028}\x{2029}]"
_PART = re.compile(r"(?s)\\u([0-9A-Fa-f]{4})|\\.|.")
"""An escaped character or a character."""
_GROUP = re.compile(r"(?s)\((?:\?:)?(?!\?)(.*)\)")
_ANYTHING = "(?s:.*)"
_MAX_DIGITS = 64

_DECIMAL = r"^(?!^[-+.]*$)[+-]?0*"
_DECIMAL_KINDS = (
    ("any", re.compile(r"\\d\*\\\.\?\\d\*\$")),
    ("places", re.compile(r"\\d\*\\\.\?\\d\{0,(\d{1,4})\}0\*\$")),
    ("digits", re.compile(
        r"\(\?:\\d\{0,(\d{1,4})\}\|\(\?=\[\\d\.\]\{1,\d{1,4}\}0\*\$\)\\d\*\\\.\\d\*0\*\$\)"
    )),
    ("both", re.compile(
        r"\(\?:\\d\{0,(\d{1,4})\}\|\(\?=\[\\d\.\]\{1,\d{1,4}\}0\*\$\)"
        r"\\d\{0,\1\}\\\.\\d\{0,(\d{1,4})\}0\*\$\)"
    )),
)  # fmt: skip
"""Possible continuations of pydantic's patterns after `_DECIMAL`, by the arguments of a number's
field: none, `decimal_places`, `max_digits`, both."""


def rust_pattern(pattern: str) -> str:
    """The same pattern for llguidance. What it cannot be is left for llguidance to refuse."""
    if pattern.startswith(_DECIMAL):
        return _decimal(pattern.removeprefix(_DECIMAL)) or pattern
    parts: list[str] = []
    in_class = False
    for found in _PART.finditer(pattern):
        part = found[0]
        if found[1] is not None:
            part = rf"\x{{{found[1]}}}"
        elif part == r"\s":
            part = _SPACE if in_class else f"[{_SPACE}]"
        elif part == r"\S":
            part = f"[^{_SPACE}]"
        elif in_class:
            in_class = part != "]"
            part = f"\\{part}" if part in "[&~" else part
        elif part == ".":
            part = _DOT
        else:
            in_class = part == "["
        parts.append(part)
    return "".join(parts)


def whole_pattern(pattern: str) -> str:
    """The pattern of all texts in which one of llguidance's patterns is found. Anchors work at both
    ends of it and of its alternatives."""
    branches = _branches(pattern)
    if len(branches) > 1:
        return "|".join(f"(?:{whole_pattern(one)})" for one in branches)
    inner = pattern.removeprefix("^")
    is_whole = re.search(r"(?<!\\)(?:\\\\)*\$$", inner) is not None
    inner = inner[:-1] if is_whole else inner
    group = _GROUP.fullmatch(pattern)
    if group and all(level for _, level in [*_levels(pattern)][:-1]):
        return whole_pattern(group[1])
    before = "" if pattern.startswith("^") else _ANYTHING
    return f"{before}(?:{inner}){'' if is_whole else _ANYTHING}"


def _branches(pattern: str) -> list[str]:
    """The alternatives of a pattern."""
    found = [""]
    for part, level in _levels(pattern):
        if part == "|" and not level:
            found.append("")
        else:
            found[-1] += part
    return found


def _levels(pattern: str) -> Iterator[tuple[str, int]]:
    """The parts of a pattern, each with the number of groups and classes that are open after it."""
    depth, in_class = 0, False
    for found in _PART.finditer(pattern):
        part = found[0]
        if in_class:
            in_class = part != "]"
        elif part == "[":
            in_class = True
        elif part in ("(", ")"):
            depth += 1 if part == "(" else -1
        yield part, depth + in_class


def _decimal(rest: str) -> str | None:
    """Decimal numbers, without trailing zeros after the point; None for an unknown pattern."""
    for kind, pattern in _DECIMAL_KINDS:
        found = pattern.fullmatch(rest)
        if found is None:
            continue
        limits = [int(text) for text in found.groups()]
        if any(limit > _MAX_DIGITS for limit in limits):
            return None
        return f"^[+-]?(?:{_digits(kind, limits)})$"
    return None


def _digits(kind: str, limits: list[int]) -> str:
    if kind == "any":
        return r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+"
    if kind == "places":
        return f"[0-9]+{_fraction(limits[0])}"
    if kind == "both":
        whole, places = limits
        return f"[0-9]{{1,{whole}}}{_fraction(places)}" if whole else f"0{_fraction(places)}"
    [most] = limits
    split = (rf"[0-9]{{{whole}}}\.[0-9]{{1,{most - whole}}}" for whole in range(1, most))
    return "|".join([f"[0-9]{{1,{most}}}", *split])


def _fraction(places: int) -> str:
    return rf"(?:\.[0-9]{{1,{places}}})?" if places else ""
