"""`Prompts`: what is asked for a row, from the options of `quire generate`; and `Template`, a text
with `{column}` marks."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.cli.row_files import Row, listed
from quire.cli.row_work import RowError
from quire.errors import ConfigError, quoted, reason
from quire.suggest import did_you_mean

_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class Template:
    """A prompt for every row. `{name}` stands for a column; `{{` and `}}` stand for braces."""

    def __init__(self, text: str, option: str) -> None:
        """`option`: name of the option that gave the text. Raises ConfigError for a brace without
        its partner."""
        self.text, self._option = text, option
        marks = list(_PART.finditer(text))
        lone = next((mark for mark in marks if mark[0] in ("{", "}")), None)
        if lone is not None:
            raise ConfigError(
                f"{option}: the brace at position {lone.start() + 1} has no partner. Write a "
                "column as {name}, and a brace as {{ or }}"
            )
        self.names = tuple(mark[1] for mark in marks if mark[1] is not None)
        """The columns that the text needs."""

    def check(self, columns: Sequence[str]) -> None:
        """Raises ConfigError if a column that the text needs is not one of these."""
        for name in self.names:
            check_column(self._option, name, columns)

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


@dataclass(frozen=True, slots=True)
class Prompts:
    """Exactly one of `prompt` and `messages` is given."""

    prompt: Template | None
    system: Template | None
    messages: str | None
    """The column with the conversations."""
    is_plain: bool
    """Whether the model continues the prompt, without its chat template."""

    @classmethod
    def of(cls, args: argparse.Namespace) -> Prompts:
        """Raises ConfigError for options that contradict each other."""
        given = [
            name
            for name in ("--prompt", "--prompt-file", "--messages")
            if getattr(args, name[2:].replace("-", "_")) is not None
        ]
        if len(given) != 1:
            raise ConfigError(
                "give one of --prompt, --prompt-file and --messages, such as "
                f"--prompt 'Translate: {{text}}'; got {' and '.join(given) or 'none'}"
            )
        if args.plain and (args.messages is not None or args.system is not None):
            raise ConfigError("--plain needs a prompt: --messages and --system are for chats")
        text = args.prompt
        if args.prompt_file is not None:
            text = read_text("--prompt-file", args.prompt_file)
        return cls(
            None if text is None else Template(text, given[0]),
            None if args.system is None else Template(args.system, "--system"),
            args.messages,
            args.plain,
        )

    def check(self, columns: Sequence[str]) -> None:
        """Raises ConfigError unless these columns suffice."""
        for template in filter(None, (self.system, self.prompt)):
            template.check(columns)
        if self.messages is not None:
            check_column("--messages", self.messages, columns)

    def fields(self, row: Row) -> dict[str, Any]:
        """The fields of the request that hold the prompt. Raises RowError."""
        if self.prompt is not None and self.is_plain:
            return {"prompt": self.prompt.fill(row)}
        begin = [] if self.system is None else [_message("system", self.system.fill(row))]
        if self.prompt is not None:
            return {"messages": [*begin, _message("user", self.prompt.fill(row))]}
        return {"messages": [*begin, *_conversation(row[self.messages or ""])]}

    def facts(self) -> dict[str, Any]:
        """Settings that replies depend on, as JSON values."""
        return {
            "prompt": self.prompt and self.prompt.text,
            "system message": self.system and self.system.text,
            "column of messages": self.messages,
            "use of the chat template": not self.is_plain,
        }


def check_column(option: str, name: str, columns: Sequence[str]) -> None:
    """Raises ConfigError if no column has this name."""
    if name not in columns:
        braces = "; write the braces {} as {{}}" if not name else did_you_mean(name, columns)
        raise ConfigError(
            f"{option}: the file has no column {quoted(name)}{braces}; it has {listed(columns)}"
        )


def read_text(option: str, place: str) -> str:
    """The text of a file, without the line break at its end. Raises ConfigError."""
    try:
        return Path(place).read_text(encoding="utf-8-sig").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option} {place} cannot be read: {reason(error)}") from None


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _conversation(value: Any) -> list[Any]:
    """A conversation, which is a list or the JSON of one. Raises RowError."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise RowError(f"the messages must be a list, or one as JSON: {error}") from None
    if not isinstance(found, list):
        raise RowError(f"the messages must be a list, got {quoted(found)}")
    return found
