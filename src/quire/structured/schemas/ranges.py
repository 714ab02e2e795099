"""The bounds of numbers in a JSON schema, and which of them llguidance holds exactly."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any, TypeGuard

from quire.structured.schemas.digits import Bound, Range, fraction_of, literal

LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
KEYWORDS = (*LOWER, *UPPER, "multipleOf")
MAX_EXACT_INTEGER = 2**53
EXACT_DIGITS = 15
"""Digits of a number, and decimal places, that the library reads exactly."""


def range_of(node: dict[str, Any]) -> Range:
    """The bounds of the numbers of one schema. Values that are not numbers are ignored."""
    lower, upper = [*_bounds(node, *LOWER)], [*_bounds(node, *UPPER)]
    return Range(
        max(lower, default=None),
        min(upper, key=lambda bound: (bound.value, not bound.is_exclusive), default=None),
    )


def exclusive_range(node: dict[str, Any]) -> Range:
    """The same, where the type allows numbers that are not integers. Bounds of integers become
    whole and inclusive, so no combination of these is inexact."""
    return range_of(node) if kind_of(node) == "number" else Range()


def is_exact_range(numbers: Range) -> bool:
    """Whether the library holds a range of numbers exactly."""
    lower, upper = numbers
    if not all(map(is_exact_bound, numbers)):
        return False
    if lower is None or upper is None or lower.value < 0 < upper.value:
        return True
    near, far = (lower, upper) if lower.value >= 0 else (upper, lower)
    # The library writes such a bound itself, as the number without decimal places.
    is_whole = near.is_exclusive and near.value.denominator == 1
    return not (is_whole and abs(far.value) // 1 == abs(near.value))


def is_exact_value(value: Any) -> bool:
    """Whether the library writes a JSON value exactly."""
    if isinstance(value, dict):
        return all(map(is_exact_value, value.values()))
    if isinstance(value, list):
        return all(map(is_exact_value, value))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return True
    if isinstance(value, int):
        return abs(value) <= MAX_EXACT_INTEGER
    return _is_exact(fraction_of(value))


def kind_of(node: dict[str, Any]) -> str | None:
    """`number` or `integer`: the numbers that the type of a schema allows; None: none."""
    given = node.get("type", "number")
    types = given if isinstance(given, list) else [given]
    return next((kind for kind in ("number", "integer") if kind in types), None)


def is_exact_bound(bound: Bound | None) -> bool:
    return bound is None or _is_exact(bound.value)


def _is_exact(value: Fraction) -> bool:
    most = 10**EXACT_DIGITS
    if abs(value) >= most or (value * most) % 1:
        return False
    return len(literal(abs(value)).replace(".", "").strip("0")) <= EXACT_DIGITS


def _bounds(node: dict[str, Any], inclusive: str, exclusive: str) -> Iterable[Bound]:
    value, other = node.get(inclusive), node.get(exclusive)
    if is_number(value):
        yield Bound(fraction_of(value), is_exclusive=other is True)  # as draft 4 has it
    if is_number(other):
        yield Bound(fraction_of(other), is_exclusive=True)


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
