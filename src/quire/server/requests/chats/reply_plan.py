"""`ReplyPlan`: how the reply to a chat is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from quire.parsers.format import ReplyFormat
from quire.parsers.parser import ReplyParser
from quire.server.requests.chats.tool_use import ToolUse


@dataclass(frozen=True, slots=True)
class ReplyPlan:
    """How the reply to one prompt is read."""

    format: ReplyFormat = field(default_factory=ReplyFormat)
    tools: ToolUse = field(default_factory=ToolUse)
    is_reasoning: bool = False
    """The prompt ends within the reasoning."""
    may_reason: bool = True
    """The reply may begin with reasoning: the prompt does not end behind it."""
    kept_token_ids: Sequence[int] = ()
    """Special tokens that the text has nevertheless: the format's marks."""
    num_calls_before: int = 0
    """Calls of tools in the conversation so far."""
    skips_special_tokens: bool = True
    """The text has no other special tokens."""
    reasoning_field: Literal["reasoning", "reasoning_content"] = "reasoning"
    """Where a message has its reasoning."""
    shows_reasoning: bool = True
    """The reply tells the reasoning, or leaves it out."""

    @property
    def is_plain(self) -> bool:
        """The reply is its text."""
        return self.format.reasoning is None and not self.tools.is_searched

    def parser(self) -> ReplyParser:
        """For one choice."""
        schemas = self.tools.schemas if self.tools.is_searched else None
        return ReplyParser(self.format, schemas, is_reasoning=self.is_reasoning)


PLAIN = ReplyPlan()
"""The reply is its text."""
