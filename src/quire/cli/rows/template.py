"""`Template`: a text with `{column}` marks, filled from a row."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from quire.cli.rows.reading import Row
from quire.cli.rows.work import RowError
from quire.errors import ConfigError, quoted
from quire.suggest import did_you_mean

_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class Template:
    """A prompt for every row. `{name}` stands for a column; `{{` and `}}` stand for braces."""

    def __init__(self, text: str, option: str) -> None:
        """`option`: name of the option that gave the text. Raises ConfigError for a brace without
        its partner."""
        self.text, self._option = text, option
        marks = list(_PART.finditer(text))
        lone = next((mark for mark in marks if mark[0] in "{}"), None)
        if lone is not None:
            raise ConfigError(
                f"{option}: the brace at position {lone.start() + 1} has no partner. Write a "
                "column as {name}, and a brace as {{ or }}"
            )
        self.names = tuple(mark[1] for mark in marks if mark[1] is not None)
        """The columns that the text needs."""

    def check(self, columns: Sequence[str]) -> None:
        """Raises ConfigError if a column that the text needs is not one of these."""
        if wrong := next((one for one in self.names if one not in columns), None):
            raise ConfigError(
                f"{self._option}: the file has no column {quoted(wrong)}"
                f"{did_you_mean(wrong, columns)}; it has {', '.join(columns)}"
            )

    def fill(self, row: Row) -> str:
        """The text for a row. Raises RowError if the row has no value for a column."""
        return _PART.sub(lambda mark: _filled(mark[0], mark[1], row), self.text)


def _filled(mark: str, name: str | None, row: Row) -> str:
    if name is None:
        return mark[0]
    value = row.get(name)
    if value is None:
        raise RowError(f"the column {quoted(name)} is empty")
    return as_text(value)


def as_text(value: Any) -> str:
    """A value of a row as text: texts and numbers as they are, others as JSON."""
    if isinstance(value, (str, float)) or type(value) is int:
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=str)
