"""The text of a conversation: what the chat template of the model makes of its messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import msgspec.structs

from quire.chat.job import VARIABLES, ChatInput
from quire.config.model_lookup.settings import messages_of
from quire.errors import RequestError
from quire.frontend.inputs.refusals import only_hears
from quire.server.conversation.conversation import Conversation, thinking_variables
from quire.server.conversation.message import ChatMessage
from quire.server.requests.limits import count_chars
from quire.server.served_model import ServedModel


async def chat_text(model: ServedModel, chat: Conversation) -> str:
    """The text that the model's chat template makes of the messages. Raises RequestError."""
    check_messages(model, chat)
    size = sum(len(text) for message in chat.messages for text in texts_of(message))
    model.limits.check_text("messages", size)
    fields = template_fields(chat)
    size += count_chars([*fields.values()][1:])
    await model.pool.run(size, _check_template_fields, model, fields)
    given = replace(chat_input(model, chat), no_images=model.config.model.no_images)
    return await render_chat(model, given, offers_tools=not chat.forbids_calls)


def texts_of(message: ChatMessage) -> list[str]:
    """The texts of a message's content, part by part."""
    if isinstance(message.content, str):
        return [message.content]
    return [part if isinstance(part, str) else part.words for part in message.content or ()]


def check_messages(model: ServedModel, chat: Conversation) -> None:
    """Raises RequestError for too many messages, or options of pictures that are not valid."""
    if len(chat.messages) > model.args.max_messages:
        raise RequestError(
            f"{len(chat.messages)} messages are more than this server allows in one request "
            f"(max_messages {model.args.max_messages}).",
            parameter="messages",
        )
    if chat.image_options:
        model.images().changed(chat.image_options)


def template_fields(chat: Conversation) -> dict[str, Any]:
    """Variables of the template, in the order in which they count against the limit."""
    return {
        "messages": chat.messages,
        "tools": chat.tools,
        "documents": chat.documents,
        VARIABLES: chat.variables,
    }


def _check_template_fields(model: ServedModel, fields: dict[str, Any]) -> None:
    limits, size = model.limits, 0
    for name, value in fields.items():
        size += count_chars(value, limits.max_tokenize_bytes)
        limits.check_text(name, size)


def chat_input(model: ServedModel, chat: Conversation) -> ChatInput:
    """The conversation as the renderer takes it."""
    own, args = chat.variables or {}, model.args
    if chat.effort is not None:
        effort = args.template_effort(chat.effort)
        own = {**thinking_variables(effort), **own, "reasoning_effort": effort}
    hides_tools = args.exclude_tools_when_tool_choice_none and chat.forbids_calls
    content_format = args.chat_template_content_format
    return ChatInput(
        with_system_prompt(chat.messages, args.system_prompt, args.first_messages or ()),
        tools=None if hides_tools else chat.tools or None,
        documents=chat.documents,
        add_generation_prompt=chat.add_generation_prompt,
        continue_final_message=chat.continue_final_message,
        variables={**args.default_chat_template_kwargs, **own},
        content_format=None if content_format == "auto" else content_format,
    )


def with_system_prompt(
    messages: list[ChatMessage], text: str, first: Sequence[str] = ()
) -> list[ChatMessage]:
    """The messages, after a system message with this text if they have none, and after the `first`
    ones; a system message of the request stays in front."""
    if first:
        head = messages[:1] if messages and _is_system(messages[0]) else []
        own = [ChatMessage(role=one["role"], content=one["content"]) for one in messages_of(first)]
        messages = [*head, *own, *messages[len(head) :]]
    if not text or any(_is_system(one) for one in messages):
        return messages
    return [ChatMessage(role="system", content=text), *messages]


def _is_system(message: ChatMessage) -> bool:
    return message.role in ("system", "developer")


async def render_chat(model: ServedModel, chat: ChatInput, *, offers_tools: bool) -> str:
    """The prompt. `offers_tools`: the reply may call the chat's tools. Raises RequestError."""
    if model.config.model.num_sources:
        raise RequestError(only_hears(model.config.model), parameter="model")
    renderer = model.chat_renderer()
    if not chat.tools or not offers_tools or not await model.describes_tools_in_words():
        return await renderer.render(chat)
    from quire.parsers.tool_formats.in_words import with_tools_in_words  # rarely used

    messages, tools = msgspec.to_builtins([chat.messages, chat.tools])
    described = replace(chat, messages=with_tools_in_words(messages, tools), tools=None)
    try:
        return await renderer.render(described)
    except RequestError:  # some templates refuse a system message
        words = with_tools_in_words(messages, tools, has_system=False)
        return await renderer.render(replace(described, messages=words))
