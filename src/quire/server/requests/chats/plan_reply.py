"""`plan_reply`: how the reply to a chat is read, by the model, the request and the prompt."""

from __future__ import annotations

from dataclasses import replace

from quire.parsers.tool_formats.json.generic import GenericCalls
from quire.server.context import ServerContext
from quire.server.plugins.of_request import plugins_of
from quire.server.reply_format import kept_tokens_of, needs_tools_in_words, reply_format_of
from quire.server.requests.chats.reply_plan import ReplyPlan
from quire.server.requests.chats.tool_use import ToolUse
from quire.server.schema.chat import ChatRequest


async def plan_reply(
    context: ServerContext, request: ChatRequest, tools: ToolUse, prompt: str
) -> ReplyPlan:
    """`prompt`: as it was rendered."""
    found = await reply_format_of(context)
    if tools.is_searched and await needs_tools_in_words(context):
        found = replace(found, tools=GenericCalls())
    if found.reasoning is not None and request.reasoning_format == "none":
        found = replace(found, reasoning=replace(found.reasoning, is_content=True))
    plugins = plugins_of(context, found, request, tools)
    if plugins is not None:
        found = plugins.format
    tags, is_continued = found.reasoning, request.continue_final_message is True
    keeps_special_tokens = plugins is not None and plugins.keeps_special_tokens
    return ReplyPlan(
        format=found,
        tools=tools,
        is_reasoning=tags is not None and tags.is_open_in(prompt, is_continued=is_continued),
        may_reason=tags is not None and not prompt.rstrip().endswith(tags.ends),
        kept_token_ids=kept_tokens_of(context, found, has_tools=tools.is_searched),
        num_calls_before=sum(len(message.tool_calls or ()) for message in request.messages),
        skips_special_tokens=not keeps_special_tokens and request.skip_special_tokens is not False,
        keeps_stop_strings=request.include_stop_str_in_output is True,
        reasoning_field=(
            "reasoning_content" if request.reasoning_format == "deepseek" else "reasoning"
        ),
        shows_reasoning=request.include_reasoning is not False,
        plugins=plugins,
    )
