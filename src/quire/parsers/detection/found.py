"""`FoundFormat`: the known format of a model's replies, and how it was found."""

from __future__ import annotations

from dataclasses import dataclass

from quire.parsers.format import ReplyFormat


@dataclass(frozen=True, slots=True)
class Origin:
    """The name of a format, and how it was chosen."""

    name: str
    how: str

    def __str__(self) -> str:
        return f"{self.name} ({self.how})"


@dataclass(frozen=True, slots=True)
class FoundFormat:
    """The format of a model's replies. An origin is None without such a format."""

    reply: ReplyFormat
    tools: Origin | None = None
    reasoning: Origin | None = None
    shows_tools: bool = False
    """Whether the chat template lists the tools for the model."""
