"""The format of a model's replies that the options of a server name, and the search for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.config import EngineConfig
from quire.server.args import ServerArgs

if TYPE_CHECKING:
    from quire.chat.async_renderer import AsyncChatRenderer
    from quire.parsers.detection.finder import FormatFinder
    from quire.parsers.detection.names import FormatChoice

_DECLARED = "hf"


def check_formats(args: ServerArgs, config: EngineConfig) -> None:
    """Raises ConfigError if an option says that the checkpoint describes its replies, and it does
    not."""
    if _DECLARED in (args.tool_call_parser, config.structured_outputs.reasoning_parser):
        from quire.parsers.detection.finder import check_choice

        check_choice(format_choice(args, config), config.model)


def format_choice(args: ServerArgs, config: EngineConfig) -> FormatChoice:
    """The format of replies that the options name."""
    from quire.parsers.detection.names import FormatChoice

    return FormatChoice.of(args.tool_call_parser, config.structured_outputs.reasoning_parser)


def format_finder(
    args: ServerArgs, config: EngineConfig, renderer: AsyncChatRenderer
) -> FormatFinder:
    """Finds the format that the options, or else the checkpoint, say."""
    from quire.parsers.detection.finder import FormatFinder

    return FormatFinder(format_choice(args, config), config.model, renderer)
