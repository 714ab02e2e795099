"""Results of a check, as lines of a table and as JSON."""

from __future__ import annotations

from dataclasses import dataclass

_MOST_CHARS = 300
"""Characters of an error that are shown."""


@dataclass(frozen=True, slots=True)
class Row:
    """One result."""

    name: str
    value: float | str
    unit: str = ""
    wanted: str = ""
    """The goal in words; "" if there is none."""
    is_good: bool | None = None
    """Whether the goal is reached; None if there is none."""


def share(name: str, value: float, wanted: float, *, least: bool = True) -> Row:
    """A percentage that has a limit."""
    sign = ">=" if least else "<="
    is_good = value >= wanted if least else value <= wanted
    return Row(name, 100 * value, "%", f"{sign} {100 * wanted:g} %", is_good)


def failed(name: str, why: str) -> Row:
    """A check that has no result."""
    return Row(name, f"FAILED: {' '.join(why.split())[:_MOST_CHARS]}", "", "a result", False)


def equal(name: str, num_different: int, num_compared: int) -> Row:
    """Results whose bits must be equal."""
    found = f"{num_different} of {num_compared} differ"
    return Row(name, found, "", "0 differ", num_compared > 0 and num_different == 0)


def line_of(part: str, row: Row) -> str:
    """A line of the table."""
    value = row.value if isinstance(row.value, str) else f"{row.value:,.4g}"
    if isinstance(row.value, float) and row.value >= 1000:
        value = f"{row.value:,.0f}"
    mark = {True: "ok", False: "MISSED", None: ""}[row.is_good]
    shown = f"{value} {row.unit}".strip()
    return f"{part:<10} {row.name:<50} {shown:<26} {row.wanted:<12} {mark}".rstrip()
