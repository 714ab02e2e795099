"""Prints texts of clients, models and files without characters that control a terminal.

Every command prints with `say`. What controls the terminal on purpose is in `cli/terminal.py`.
"""

from __future__ import annotations

from typing import TextIO

_CONTROLS = (*range(32), *range(127, 160), 0x2028, 0x2029)
"""The codes of ASCII, of Latin 1, and Unicode's separators of lines."""
_DIRECTIONS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Show the characters after them in another order, as texts of a right-to-left script may need."""
_REMOVED = dict.fromkeys(_CONTROLS) | {9: "\t", 10: "\n"}
_ESCAPED = {code: repr(chr(code))[1:-1] for code in (*_CONTROLS, *_DIRECTIONS)} | {9: "\t"}


def printable(text: str) -> str:
    """The text without control characters, except tabs and line feeds."""
    return text.translate(_REMOVED)


def one_line(text: str) -> str:
    """The text with control characters and those of directions as escapes, except tabs: for a line
    of a log or a table."""
    return text.translate(_ESCAPED)


def say(
    text: object = "", *, end: str = "\n", file: TextIO | None = None, flush: bool = False
) -> None:
    """Prints `printable(str(text))`."""
    print(printable(str(text)), end=end, file=file, flush=flush)
