"""`settle_numbers`: writes the numbers of a JSON schema so that llguidance reads them exactly.

The library keeps each number as a 64-bit float, and each integer in 64 bits. What it would round
or mistake for another number gets a pattern of its own here; `parts` puts that into the grammar.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

from quire.errors import GrammarError, quoted
from quire.structured.params import FIELD
from quire.structured.schemas.digits import Bound, Range, fraction_of, literal, number_pattern
from quire.structured.schemas.merging import (
    EXACT_DIGITS,
    KEYWORDS,
    LOWER,
    MAX_EXACT_INTEGER,
    UPPER,
    is_exact_bound,
    is_exact_range,
    is_exact_value,
    is_number,
    kind_of,
    range_of,
)
from quire.structured.schemas.places import schemas

MAX_DIGITS = 400
"""Maximum digits of a number before and after its point: more than 64-bit floats have."""
_MAX_MULTIPLES = 256
"""Maximum multiples that are written out if the library cannot handle them."""


def settle_numbers(schema: dict[str, Any]) -> dict[int, str]:
    """Changes the keywords of numbers in place to what the library holds exactly. Returns patterns
    of numbers, by the `id` of their nodes, for nodes where that is not possible; an empty pattern
    means that the values of `enum` or `const` are such numbers. Raises GrammarError for what cannot
    be exact in a pattern either."""
    patterns: dict[int, str] = {}
    for path, node in schemas(schema):
        pattern = _settled(node, path)
        if pattern is not None:
            patterns[id(node)] = pattern
    return patterns


def _settled(node: dict[str, Any], path: str) -> str | None:
    if not _has_numbers(node):
        return None  # for the library to refuse, if it is a schema at all
    _check_numbers(node, path)
    given = [key for key in KEYWORDS if key in node]
    kind = kind_of(node)
    step = _step(node, kind)
    numbers = range_of(node)
    if "enum" in node or "const" in node:
        return _settled_values(node, given, numbers, step)
    if not given or kind is None:
        return None
    if step is not None:
        numbers = _multiples(numbers, step)
    elif kind == "integer":
        numbers = whole_range(numbers)
    if step is None and is_empty_range(numbers) and all(map(is_exact_bound, range_of(node))):
        return None  # the library says which bounds contradict each other
    for key in given:
        if key != "multipleOf":
            del node[key]
    if is_empty_range(numbers):
        _without_numbers(node)
        return None
    if step is not None:
        return _settled_multiples(node, numbers, step, path)
    is_integer = kind == "integer"
    if _is_exact_integers(numbers) if is_integer else is_exact_range(numbers):
        _write(node, numbers)
        return None
    return number_pattern(numbers, is_integer=is_integer)


def _has_numbers(node: dict[str, Any]) -> bool:
    """Whether the keywords of numbers have the types that JSON Schema gives them."""
    return all(
        is_number(node[key]) or (key.startswith("exclusive") and isinstance(node[key], bool))
        for key in KEYWORDS
        if key in node
    )


def _check_numbers(node: dict[str, Any], path: str) -> None:
    for key in (*KEYWORDS, "enum", "const"):
        if not _is_short(node.get(key)):
            raise _error(f"numbers of {key} must have at most {MAX_DIGITS} digits", path)
    if node.get("multipleOf", 1) <= 0:
        raise _error(f"multipleOf must be above 0, got {quoted(node['multipleOf'])}", path)


def _is_short(value: Any) -> bool:
    """Whether all integers of a JSON value have few digits."""
    if isinstance(value, (dict, list)):
        return all(map(_is_short, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int) or abs(value) < 10**MAX_DIGITS


def _step(node: dict[str, Any], kind: str | None) -> Fraction | None:
    """Number of which the values are multiples; integers are multiples of a whole number."""
    if "multipleOf" not in node:
        return None
    step = fraction_of(node["multipleOf"])
    return Fraction(step.numerator) if kind == "integer" else step


def _settled_values(
    node: dict[str, Any], given: list[str], numbers: Range, step: Fraction | None
) -> str | None:
    """With those values of `enum` and `const` alone that the other keywords allow."""

    def is_allowed(value: Any) -> bool:
        if not is_number(value):
            return True
        number = fraction_of(value)
        return numbers.has(number) and (step is None or number % step == 0)

    for key in given:
        del node[key]
    if "const" in node and not is_allowed(node["const"]):
        del node["const"]
        node["enum"] = []
    if isinstance(values := node.get("enum"), list):
        node["enum"] = [value for value in values if is_allowed(value)]
    values = [node.get("enum"), node.get("const")]
    return None if all(map(is_exact_value, values)) else ""


def _settled_multiples(
    node: dict[str, Any], numbers: Range, step: Fraction, path: str
) -> str | None:
    """`numbers` begin and end with a multiple, if they do."""
    lower, upper = numbers
    count = (upper.value - lower.value) / step + 1 if lower and upper else math.inf
    is_integer = kind_of(node) == "integer"
    is_exact = _is_exact_integers(numbers) if is_integer else is_exact_range(numbers)
    if count > 2 and is_exact and _is_exact_step(node["multipleOf"]):
        _write(node, numbers)
        return None
    if lower is None or count > _MAX_MULTIPLES:
        raise _error(
            f"multipleOf {node['multipleOf']} cannot be held exactly with these bounds; leave it "
            "out, or use bounds of at most 15 digits and a multipleOf such as 0.01",
            path,
        )
    del node["multipleOf"]
    values = [lower.value + step * i for i in range(int(count))]
    if node.get("type") == "integer" and is_exact:
        node["enum"] = [int(value) for value in values]
        return None
    return f"(?:{'|'.join(re.escape(literal(value)) for value in values)})"


def _is_exact_step(given: float) -> bool:
    """The library makes an integer of the float by multiplying it by ten, with rounding."""
    value, places = float(given), 0
    while value % 1 and places < EXACT_DIGITS:
        value, places = value * 10, places + 1
    return Decimal(value).scaleb(-places) == Decimal(repr(given))


def whole_range(numbers: Range) -> Range:
    """From the first integer to the last one."""
    return _multiples(numbers, Fraction(1))


def _multiples(numbers: Range, step: Fraction) -> Range:
    """From the first multiple to the last one."""
    lower, upper = numbers
    if lower is not None:
        least = math.ceil(lower.value / step) * step
        lower = Bound(least + step if lower.is_exclusive and least == lower.value else least)
    if upper is not None:
        most = math.floor(upper.value / step) * step
        upper = Bound(most - step if upper.is_exclusive and most == upper.value else most)
    return Range(lower, upper)


def is_empty_range(numbers: Range) -> bool:
    """Whether no number is in the range."""
    lower, upper = numbers
    return not (lower is None or upper is None) and (
        lower.value > upper.value
        or (lower.value == upper.value and (lower.is_exclusive or upper.is_exclusive))
    )


def _without_numbers(node: dict[str, Any]) -> None:
    """No number is allowed."""
    node.pop("multipleOf", None)
    given = node.get("type", ["null", "boolean", "string", "array", "object"])
    types = given if isinstance(given, list) else [given]
    others = [kind for kind in types if kind not in ("number", "integer")]
    if others:
        node["type"] = others
    else:
        node["enum"] = []


def _is_exact_integers(numbers: Range) -> bool:
    return all(bound is None or abs(bound.value) <= MAX_EXACT_INTEGER for bound in numbers)


def _write(node: dict[str, Any], numbers: Range) -> None:
    for bound, keywords in ((numbers.lower, LOWER), (numbers.upper, UPPER)):
        if bound is not None:
            is_whole = bound.value.denominator == 1
            value = int(bound.value) if is_whole else float(bound.value)
            node[keywords[bound.is_exclusive]] = value


def _error(what: str, path: str) -> GrammarError:
    return GrammarError(f"{FIELD}.json: {what} (at {path})", parameter=f"{FIELD}.json")
