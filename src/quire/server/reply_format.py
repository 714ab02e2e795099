"""How the model writes its replies: asked once, for the first chat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.server.context import ServerContext

if TYPE_CHECKING:
    from quire.parsers.detection.found import FoundFormat


async def reply_format_of(context: ServerContext) -> FoundFormat:
    """The format, as the options say or as the checkpoint shows; see `parsers.detection`.

    The first call renders some conversations in the renderer's processes; later ones return at
    once. Raises CapacityError while the chat templates are too busy, RequestError without a
    tokenizer.
    """
    if context.formats is None:
        from quire.parsers.detection.finder import FormatFinder
        from quire.parsers.detection.names import FormatChoice

        config = context.config
        reasoning = config.structured_outputs.reasoning_parser
        choice = FormatChoice.of(context.args.tool_call_parser, reasoning)
        context.formats = FormatFinder(choice, config.model, context.chat_renderer())
    return await context.formats.find()
