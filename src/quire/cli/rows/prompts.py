"""`Prompts`: what is asked for a row, from the options of `quire generate`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.cli.rows.reading import Row
from quire.cli.rows.template import Template
from quire.cli.rows.work import RowError
from quire.errors import ConfigError, quoted, reason
from quire.suggest import did_you_mean


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
        if self.messages is not None and self.messages not in columns:
            raise ConfigError(
                f"--messages: the file has no column {quoted(self.messages)}"
                f"{did_you_mean(self.messages, columns)}; it has {', '.join(columns)}"
            )

    def fields(self, row: Row) -> dict[str, Any]:
        """The fields of the request that hold the prompt. Raises RowError."""
        if self.prompt is not None and self.is_plain:
            return {"prompt": self.prompt.fill(row)}
        begin = [] if self.system is None else [_message("system", self.system.fill(row))]
        if self.prompt is not None:
            return {"messages": [*begin, _message("user", self.prompt.fill(row))]}
        return {"messages": [*begin, *_conversation(row[self.messages or ""])]}

    def facts(self) -> dict[str, Any]:
        """What replies depend on, as JSON values."""
        return {
            "prompt": self.prompt and self.prompt.text,
            "system message": self.system and self.system.text,
            "column of messages": self.messages,
            "use of the chat template": not self.is_plain,
        }


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
