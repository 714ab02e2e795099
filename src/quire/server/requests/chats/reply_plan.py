"""`reply_plan`: how the reply to a chat is read."""

from __future__ import annotations

from quire.server.context import ServerContext
from quire.server.replies.parsed import ReplyPlan
from quire.server.reply_format import reply_format_of
from quire.server.requests.chats.tool_use import ToolUse
from quire.server.schema.chat import ChatRequest


async def reply_plan(
    context: ServerContext, request: ChatRequest, tools: ToolUse, prompt: str
) -> ReplyPlan:
    """`prompt`: as it was rendered."""
    found = (await reply_format_of(context)).reply
    return ReplyPlan(
        format=found,
        tools=tools,
        is_reasoning=found.reasoning is not None
        and found.reasoning.is_open_in(prompt, is_continued=request.continue_final_message is True),
        shows_reasoning=request.include_reasoning is not False,
    )
