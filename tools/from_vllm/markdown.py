"""Tables and names in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, with empty lines around it."""
    lines = [heads, ["---"] * len(heads), *rows]
    text = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
                     for line in lines)  # fmt: skip
    return f"\n{text}\n\n"


def code(value: object) -> str:
    """The value as code."""
    return f"`{value}`"


def codes(values: Iterable[object]) -> str:
    """Several, separated by commas."""
    return ", ".join(map(code, values))


def one_line(text: str) -> str:
    """A docstring's text in one line."""
    return " ".join(text.split())
