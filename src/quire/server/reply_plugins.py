"""Parsers of replies from an operator's plug-in files, which are written for vLLM's classes.

`quire.vllm` has these classes. It is imported when an option names a plug-in file, and nowhere
else in Quire, so it is named as a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from quire.frontend.online.async_llm import AsyncLLM
    from quire.parsers.events import Event
    from quire.parsers.format import ReplyFormat
    from quire.server.args import ServerArgs
    from quire.server.conversation.conversation import Conversation
    from quire.server.requests.request import AnyRequest

_MODULE = "quire.vllm.parsers.of_server"


class ReplyReader(Protocol):
    """Parses one reply: a `ReplyParser`, or a reader that runs the parsers of plug-ins."""

    @property
    def reasoning_spans(self) -> Sequence[tuple[int, int]]:
        """Begin and end of each span of reasoning in the text so far."""

    def read(
        self, text: str, token_ids: Sequence[int] = (), *, is_last: bool, is_cut: bool = False
    ) -> list[Event]:
        """The events of the next text. `is_cut`: the model did not end the reply itself."""


class RequestPlugins(Protocol):
    """The parsers of plug-ins that read the reply to one request."""

    @property
    def format(self) -> ReplyFormat:
        """The reply format for what no plug-in parses."""

    @property
    def reads_reasoning(self) -> bool:
        """Whether one of them reads the reasoning."""

    @property
    def keeps_special_tokens(self) -> bool:
        """Whether they need the special tokens in the text."""

    def reader(
        self,
        format: ReplyFormat,
        schemas: Mapping[str, Mapping[str, Any]] | None,
        prompt_token_ids: Sequence[int],
        *,
        is_reasoning: bool,
    ) -> ReplyReader:
        """A reader for one choice."""


class ReplyPlugins(Protocol):
    """The functions of that module."""

    def load(
        self, tool_plugin: str, reasoning_plugin: str, tool_name: str | None, reasoning_name: str
    ) -> None:
        """Runs the plug-in files and registers their parsers as reply formats, by name. Raises
        ConfigError."""

    def check(self, tool_name: str | None, reasoning_name: str, tokenizer: Any) -> None:
        """Makes each parser once. Raises ConfigError."""

    def of_request(
        self, engine: AsyncLLM, format: ReplyFormat, asked: AnyRequest, chat: Conversation
    ) -> RequestPlugins | None:
        """None if no plug-in reads any of the reply. `format`: as it was found for the model."""


def reply_plugins(args: ServerArgs) -> ReplyPlugins | None:
    """None if no option names a plug-in file."""
    if not args.tool_parser_plugin and not args.reasoning_parser_plugin:
        return None
    return cast(ReplyPlugins, import_module(_MODULE))
