"""`ReplyPlan`: how the reply to a chat is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from quire.parsers.events import Event
from quire.parsers.format import ReplyFormat
from quire.parsers.parser import ReplyParser
from quire.server.requests.chats.tool_use import ToolUse


class ReplyReader(Protocol):
    """Reads one reply: a `ReplyParser`, or what a plug-in's parsers are run by."""

    @property
    def reasoning_spans(self) -> Sequence[tuple[int, int]]:
        """Where reasoning is in the text so far."""

    def read(
        self, text: str, token_ids: Sequence[int] = (), *, is_last: bool, is_cut: bool = False
    ) -> list[Event]:
        """What more of the reply means. `is_cut`: the model did not end it itself."""


class Plugins(Protocol):
    """The parsers of plug-ins that read a reply."""

    def reader(self, plan: ReplyPlan, prompt_token_ids: Sequence[int]) -> ReplyReader:
        """For one choice."""

    @property
    def reads_reasoning(self) -> bool:
        """Whether the reasoning is one plug-in's part."""


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
    keeps_stop_strings: bool = False
    """The text has the stop string that ended it."""
    reasoning_field: Literal["reasoning", "reasoning_content"] = "reasoning"
    """Where a message has its reasoning."""
    shows_reasoning: bool = True
    """The reply tells the reasoning, or leaves it out."""
    plugins: Plugins | None = None
    """Parsers that read in the place of the format."""

    @property
    def is_plain(self) -> bool:
        """The reply is its text."""
        is_told = self.plugins is not None and self.plugins.reads_reasoning
        return self.format.reasoning is None and not self.tools.is_searched and not is_told

    @property
    def schemas(self) -> Mapping[str, Mapping[str, Any]] | None:
        """Those of the tools that may be called; None: calls are not looked for."""
        return self.tools.schemas if self.tools.is_searched else None

    def parser(self, prompt_token_ids: Sequence[int] = ()) -> ReplyReader:
        """For one choice."""
        if self.plugins is not None:
            return self.plugins.reader(self, prompt_token_ids)
        return ReplyParser(self.format, self.schemas, is_reasoning=self.is_reasoning)


PLAIN = ReplyPlan()
"""The reply is its text."""
