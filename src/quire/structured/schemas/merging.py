"""Counts how many patterns of a JSON schema one text may have to match, computes the least common
multiple for one number, and finds bounds that are not exact together; the bounds of numbers, and
which of them llguidance holds exactly.

`allOf`, `$ref` and branches next to other keywords merge schemas, and the time to compile merged
patterns grows exponentially. Called by `limits`. Counts are upper bounds: all parts of the same
name are treated as one place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeGuard
from urllib.parse import unquote

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


_HERE = ""
"""The place of a schema itself; properties lie under their names, other parts under keywords."""
_MANY = 10**18
"""More than any limit."""
_MOST_PAIRS = 10_000
"""Maximum pairs of bounds that are compared in one place."""
_LISTS_OF_PARTS = ("prefixItems", "items")
_PARTS = (
    "items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties",
    "unevaluatedProperties", "propertyNames", "not", "if", "then", "else",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Merged:
    """Constraints that apply to one place of a value."""

    patterns: int = 0
    multiple: int = 1
    ranges: frozenset[Range] = frozenset()
    is_exact: bool = True
    """Whether the library holds all bounds exactly that two schemas give together."""

    def both(self, other: Merged) -> Merged:
        """With a schema that holds too."""
        return Merged(
            self.patterns + other.patterns,
            math.lcm(self.multiple, other.multiple),
            self.ranges | other.ranges,
            self.is_exact and other.is_exact and _are_exact(self.ranges, other.ranges),
        )

    def either(self, other: Merged) -> Merged:
        """With one that holds instead, or in another place of that name."""
        return Merged(
            max(self.patterns, other.patterns),
            max(self.multiple, other.multiple),
            self.ranges | other.ranges,
            self.is_exact and other.is_exact,
        )


def _are_exact(ranges: frozenset[Range], others: frozenset[Range]) -> bool:
    if len(ranges) * len(others) > _MOST_PAIRS:
        return False
    return all(
        is_exact_range(Range(lower, upper))
        for one in ranges
        for other in others
        for lower, upper in ((one.lower, other.upper), (other.lower, one.upper))
    )


_Places = dict[str, Merged]


def most_merged(schema: Any) -> Merged:
    """The most of each in any place of a schema, whose depth is bounded."""
    most = Merged()
    for merged in _Collector(schema).of(schema).values():
        most = most.either(merged)
    return most


def multiple_of(node: dict[str, Any]) -> int:
    """`multipleOf` without its decimal point; 1 without one that is a positive number."""
    value = node.get("multipleOf")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        return 1
    number = Decimal(str(value)) if value < _MANY else Decimal(_MANY)
    digits = number.normalize().as_tuple()
    whole = int("".join(map(str, digits.digits)))
    return int(whole * 10 ** max(0, int(digits.exponent)))


class _Collector:
    """Collects the places of one schema; each target of a `$ref` once, however it is spelled, and
    without recursion: hundreds of definitions may refer to each other in a row."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._targets: dict[int, _Places] = {}
        """By the `id` of the target's node; empty while they are collected."""
        self._unknown: _Places | None = None

    def of(self, node: Any) -> _Places:
        if not isinstance(node, dict):
            return {}
        has = ("pattern" in node) + ("format" in node)
        places: _Places = {_HERE: Merged(has, multiple_of(node), _ranges(node))}
        for name, part in self._parts(node):
            for place, merged in self.of(part).items():
                _put(places, name if place == _HERE else place, merged)
        for more in self._conditions(node):
            for place, merged in more.items():
                places[place] = places[place].both(merged) if place in places else merged
        return {place: merged for place, merged in places.items() if merged != Merged()}

    def _parts(self, node: dict[str, Any]) -> Iterable[tuple[str, Any]]:
        for keyword in ("properties", "patternProperties"):
            if isinstance(parts := node.get(keyword), dict):
                yield from parts.items()
        for keyword in _LISTS_OF_PARTS:
            if isinstance(parts := node.get(keyword), list):
                yield from ((f"/{keyword}", part) for part in parts)
        yield from ((f"/{keyword}", node.get(keyword)) for keyword in _PARTS)

    def _conditions(self, node: dict[str, Any]) -> Iterable[_Places]:
        """Constraints of other keywords that apply in addition."""
        if isinstance(branches := node.get("allOf"), list):
            yield from map(self.of, branches)
        for keyword in ("anyOf", "oneOf"):
            if isinstance(branches := node.get(keyword), list):
                places: _Places = {}
                for branch in branches:
                    for place, merged in self.of(branch).items():
                        _put(places, place, merged)
                yield places
        if isinstance(target := node.get("$ref"), str):
            yield self._target(target)

    def _target(self, reference: str) -> _Places:
        try:
            node = resolved(self._root, reference)
        except (LookupError, ValueError, TypeError):
            if self._unknown is None:
                self._unknown = {_HERE: self._everything()}
            return self._unknown  # an anchor, perhaps
        if id(node) not in self._targets:
            self._collect(node)
        return self._targets[id(node)]

    def _collect(self, target: Any) -> None:
        """The places of a target, after those of the targets that it refers to."""
        path = [(target, self._begun(target))]
        while path:
            node, others = path[-1]
            new = next((other for other in others if id(other) not in self._targets), None)
            if new is None:
                path.pop()
                self._targets[id(node)] = self.of(node)
            else:
                path.append((new, self._begun(new)))

    def _begun(self, node: Any) -> Iterator[Any]:
        """The targets of all references in a node, whose own places are empty from now on."""
        self._targets[id(node)] = {}
        return self._targets_in(node)

    def _targets_in(self, node: Any) -> Iterator[Any]:
        for each in objects_within(node):
            if isinstance(reference := each.get("$ref"), str):
                with suppress(LookupError, ValueError, TypeError):
                    yield resolved(self._root, reference)

    def _everything(self) -> Merged:
        """All of the schema in one place."""
        total = Merged()
        for each in objects_within(self._root):
            has = ("pattern" in each) + ("format" in each)
            total = total.both(Merged(has, multiple_of(each), _ranges(each)))
        return total


def _ranges(node: dict[str, Any]) -> frozenset[Range]:
    """The bounds of numbers, where they have some that can be less exact together with others."""
    numbers = exclusive_range(node)
    return frozenset() if numbers == Range() else frozenset((numbers,))


def objects_within(value: Any) -> Iterator[dict[str, Any]]:
    """All objects within a JSON value."""
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            yield each
            left += each.values()
        elif isinstance(each, list):
            left += each


def _put(places: _Places, place: str, merged: Merged) -> None:
    places[place] = places[place].either(merged) if place in places else merged


def resolved(root: Any, reference: str) -> Any:
    """The part to which a reference points: `#` and a JSON pointer. Raises an error for others."""
    if reference != "#" and not reference.startswith("#/"):
        raise ValueError(reference)
    node = root
    for word in unquote(reference[1:]).split("/")[1:]:
        word = word.replace("~1", "/").replace("~0", "~")
        node = node[int(word)] if isinstance(node, list) else node[word]
    return node
