"""`number_pattern`: the regular expression of the numbers between two bounds, digit by digit.

llguidance keeps bounds as 64-bit floats. A range that these cannot hold is written out here, in
decimal notation without an exponent, exact whatever the number of digits.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

_ANY = "[0-9]*"
_POSITIVE = "[0-9]*[1-9][0-9]*"
_ANY_FRACTION = r"(?:\.[0-9]+)?"


class Bound(NamedTuple):
    """One end of a range."""

    value: Fraction
    is_exclusive: bool = False


class Range(NamedTuple):
    """Numbers between two bounds; None: unbounded."""

    lower: Bound | None = None
    upper: Bound | None = None

    def has(self, value: Fraction) -> bool:
        """Whether a number lies within."""
        lower, upper = self
        if lower and (value < lower.value or (lower.is_exclusive and value == lower.value)):
            return False
        return not (
            upper and (value > upper.value or (upper.is_exclusive and value == upper.value))
        )


@lru_cache(maxsize=128)
def number_pattern(numbers: Range, *, is_integer: bool) -> str:
    """The numbers of a range that is not empty, as JSON writes them. Bounds have finitely many
    decimal places; those of integers are whole and inclusive."""
    zero = Bound(Fraction(0))
    below = Bound(Fraction(0), is_exclusive=True)
    lower, upper = numbers
    found: list[str] = []
    if lower is None or lower.value < 0:
        least = _negated(upper) if upper and upper.value < 0 else below
        if is_integer and least is below:
            least = Bound(Fraction(1))
        most = _negated(lower) if lower else None
        if most is None or least.value <= most.value:
            found.append(f"-(?:{_nonnegative(least, most, is_integer=is_integer)})")
    if upper is None or upper.value > 0 or (upper.value == 0 and not upper.is_exclusive):
        least = lower if lower and lower.value >= 0 else zero
        found.append(_nonnegative(least, upper, is_integer=is_integer))
    return _either(found)


def literal(value: Fraction) -> str:
    """A number with finitely many decimal places, without an exponent."""
    whole, fraction = _split(abs(value))
    return f"{'-' if value < 0 else ''}{whole}{'.' if fraction else ''}{fraction}"


def _negated(bound: Bound) -> Bound:
    return Bound(-bound.value, bound.is_exclusive)


def _nonnegative(lower: Bound, upper: Bound | None, *, is_integer: bool) -> str:
    least, least_places = _split(lower.value)
    most: str | None = None
    most_places = ""
    if upper is not None:
        most, most_places = _split(upper.value)
    if is_integer:
        return _either(_integers(least, most))
    if upper is not None and least == most:
        return least + _fractions(lower, least_places, upper, most_places)
    found = [least + _fractions(lower, least_places, None, "")]
    between = str(int(least) + 1), None if most is None else str(int(most) - 1)
    if between[1] is None or int(between[0]) <= int(between[1]):
        found.append(_either(_integers(*between)) + _ANY_FRACTION)
    if upper is not None and most is not None and (most_places or not upper.is_exclusive):
        found.append(most + _fractions(Bound(Fraction(0)), "", upper, most_places))
    return _either(found)


def _split(value: Fraction) -> tuple[str, str]:
    """The digits before and after the decimal point of a number that is not negative."""
    whole, rest = divmod(value, 1)
    places = 0
    while (rest * 10**places).denominator != 1:
        places += 1
    return str(whole), str(int(rest * 10**places)).zfill(places) if places else ""


def _integers(least: str, most: str | None) -> list[str]:
    """Alternatives: integers of no sign."""
    if most is None:
        return [least, *_above(least), f"[1-9][0-9]{{{len(least)},}}"]
    if least == most:
        return [least]
    if len(least) == len(most):
        return [least, *_between(least, most), most]
    found = [least, *_above(least)]
    if len(most) - len(least) > 1:
        found.append(f"[1-9][0-9]{{{len(least)},{len(most) - 2}}}")
    return [*found, *_below(most, first=1), most]


def _fractions(lower: Bound, least: str, upper: Bound | None, most: str) -> str:
    """The decimal places of numbers that agree before the point, with the point. Zeros may follow
    each; none at all are zero."""
    width = max(len(least), len(most))
    low, high = least.ljust(width, "0"), most.ljust(width, "0")
    found = [*_equal(least)] if not lower.is_exclusive else []
    if upper is None:
        found += [*_above(low, is_fraction=True), _runs(low) + _POSITIVE]
    elif low != high:
        found += [*_between(low, high, is_fraction=True), _runs(low) + _POSITIVE]
        if not upper.is_exclusive:
            found += _equal(most)
    has_none = "" in found
    found = [one for one in found if one]
    if not found:
        return ""
    return rf"(?:\.{_either(found)}){'?' if has_none else ''}"


def _equal(places: str) -> list[str]:
    return [f"{_runs(places)}0*"] if places else ["", "0+"]


def _between(low: str, high: str, *, is_fraction: bool = False) -> list[str]:
    """Alternatives: digits between two texts of one length, the first below the second. Integers
    are of that length; places may be fewer, or more."""
    at = next(i for i, (one, other) in enumerate(zip(low, high, strict=True)) if one != other)
    start = _runs(low[:at])
    found: list[str] = []
    if int(low[at]) + 1 < int(high[at]):
        middle = _class(int(low[at]) + 1, int(high[at]) - 1)
        found.append(f"{start}{middle}{_rest(len(low) - at - 1, is_fraction=is_fraction)}")
    found += _above(low, at + 1, is_fraction=is_fraction)
    return found + _below(high, at + 1, is_fraction=is_fraction)


def _above(digits: str, begin: int = 0, *, is_fraction: bool = False) -> list[str]:
    """Alternatives: as many digits, equal up to `begin` at least, then above."""
    return [
        _runs(digits[:i])
        + _class(int(digits[i]) + 1, 9)
        + _rest(len(digits) - i - 1, is_fraction=is_fraction)
        for i in range(begin, len(digits))
        if digits[i] != "9"
    ]


def _below(digits: str, begin: int = 0, *, first: int = 0, is_fraction: bool = False) -> list[str]:
    """Alternatives: equal up to `begin` at least, then below. `first`: the least first digit."""
    found: list[str] = []
    for i in range(begin, len(digits)):
        least = first if i == 0 else 0
        if is_fraction and digits[i] != "0":  # fewer places, where only zeros would follow
            kept = max(len(digits[:i].rstrip("0")), begin)
            found.append(f"{_runs(digits[:kept])}0{{0,{i - kept}}}" if i > kept else digits[:kept])
        if int(digits[i]) > least:
            rest = _rest(len(digits) - i - 1, is_fraction=is_fraction)
            found.append(f"{_runs(digits[:i])}{_class(least, int(digits[i]) - 1)}{rest}")
    return found


def _rest(count: int, *, is_fraction: bool) -> str:
    if is_fraction:
        return _ANY
    return f"[0-9]{{{count}}}" if count else ""


def _class(least: int, most: int) -> str:
    return str(least) if least == most else f"[{least}-{most}]"


def _runs(digits: str) -> str:
    """The same digits; long repetitions of one are counted."""
    runs = ((digit, len([*group])) for digit, group in groupby(digits))
    return "".join(f"{digit}{{{n}}}" if n > 4 else digit * n for digit, n in runs)


def _either(alternatives: Iterable[str]) -> str:
    found = [*dict.fromkeys(alternatives)]
    return found[0] if len(found) == 1 else f"(?:{'|'.join(found)})"


def fraction_of(value: float) -> Fraction:
    """A number of JSON, as its shortest text says."""
    return Fraction(value if isinstance(value, int) else Decimal(repr(value)))
