"""`FoundFormat`: what is known of a model's replies, and how it was found."""

from __future__ import annotations

from dataclasses import dataclass

from quire.parsers.format import ReplyFormat


@dataclass(frozen=True, slots=True)
class Origin:
    """The name of a format, and where it comes from."""

    name: str
    how: str

    def __str__(self) -> str:
        return f"{self.name} ({self.how})"


@dataclass(frozen=True, slots=True)
class FoundFormat:
    """How a model writes its replies. An origin that is None: no such format."""

    reply: ReplyFormat
    tools: Origin | None = None
    reasoning: Origin | None = None
    shows_tools: bool = False
    """Whether the chat template tells the model which tools there are."""
    header: str = ""
    """What the chat template writes before a reply; empty if that was not found out."""

    def is_within_reasoning(self, prompt: str) -> bool:
        """Whether this prompt ends within the reasoning: the reply then begins in it."""
        tags = self.reply.reasoning
        if tags is None:
            return False
        if prompt.rstrip().endswith(tags.begin.rstrip()):
            return True
        place = prompt.rfind(self.header) if self.header else -1
        if place < 0:
            return False
        reply = prompt[place + len(self.header) :]
        return reply.rfind(tags.begin) > reply.rfind(tags.end)
