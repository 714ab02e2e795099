"""`render_chat`: a conversation as a prompt, with tools in words where its template has none."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from quire.chat.job import ChatInput
from quire.errors import RequestError
from quire.parsers.tool_formats.json.generic import with_tools_in_words
from quire.server.context import ServerContext
from quire.server.reply_format import needs_tools_in_words


async def render_chat(context: ServerContext, chat: ChatInput, *, offers_tools: bool) -> str:
    """The prompt. `offers_tools`: the reply may call the chat's tools. Raises RequestError."""
    renderer = context.chat_renderer()
    if not chat.tools or not offers_tools or not await needs_tools_in_words(context):
        return await renderer.render(chat)
    messages, tools = msgspec.to_builtins([chat.messages, chat.tools])
    told = replace(chat, messages=with_tools_in_words(messages, tools), tools=None)
    try:
        return await renderer.render(told)
    except RequestError:  # some templates refuse a message of the system
        words = with_tools_in_words(messages, tools, has_system=False)
        return await renderer.render(replace(told, messages=words))
