"""How the model writes its replies: asked once, for the first chat."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from quire.server.context import ServerContext

if TYPE_CHECKING:
    from quire.config import EngineConfig
    from quire.parsers.detection.finder import FormatFinder
    from quire.parsers.detection.names import FormatChoice
    from quire.parsers.format import ReplyFormat
    from quire.server.args import ServerArgs

_DECLARED = "hf"


def check_formats(args: ServerArgs, config: EngineConfig) -> None:
    """Raises ConfigError where an option says that the checkpoint describes its replies, and it
    does not."""
    if _DECLARED in (args.tool_call_parser, config.structured_outputs.reasoning_parser):
        from quire.parsers.detection.finder import check_choice

        check_choice(_choice(args, config), config.model)


async def reply_format_of(context: ServerContext) -> ReplyFormat:
    """The format, as the options say or as the checkpoint shows; see `parsers.detection`.

    The first call renders some conversations in the renderer's processes; later ones return at
    once. Raises CapacityError while the chat templates are too busy, RequestError without a
    tokenizer.
    """
    if context.reply_format is None:
        if context.formats is None:
            made = await asyncio.to_thread(_finder, context)  # it imports every format
            context.formats = context.formats or made
        context.reply_format = (await context.formats.find()).reply
    return context.reply_format


async def needs_tools_in_words(context: ServerContext) -> bool:
    """Whether the model's chat template shows no tools, and nothing says how it calls them: then
    the messages tell it (`tools_in_words`)."""
    format = await reply_format_of(context)
    found = None if context.formats is None else context.formats.found
    is_off = context.args.tool_call_parser == "none"
    return format.tools is None and found is not None and not found.shows_tools and not is_off


def kept_tokens_of(context: ServerContext, format: ReplyFormat, *, has_tools: bool) -> list[int]:
    """The special tokens that the text of a reply in the model's format has to have."""
    known = context.kept_token_ids
    if has_tools not in known:
        from quire.parsers.kept_tokens import kept_token_ids

        known[has_tools] = kept_token_ids(format, context.tokenizer(), has_tools=has_tools)
    return known[has_tools]


def _finder(context: ServerContext) -> FormatFinder:
    from quire.parsers.detection.finder import FormatFinder

    choice = _choice(context.args, context.config)
    return FormatFinder(choice, context.config.model, context.chat_renderer())


def _choice(args: ServerArgs, config: EngineConfig) -> FormatChoice:
    from quire.parsers.detection.names import FormatChoice

    return FormatChoice.of(args.tool_call_parser, config.structured_outputs.reasoning_parser)
