"""Fields of requests for the prompt of a text or a conversation."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from quire.server.args import ReasoningEffort
from quire.server.conversation.message import ChatMessage, Tool


class TemplateVariables(msgspec.Struct, kw_only=True):
    """The field of requests that goes to the chat template as it is."""

    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the chat template."""


class TemplateFields(TemplateVariables, kw_only=True, forbid_unknown_fields=True):
    """Fields of requests for the prompt of a conversation."""

    model: str | None = None
    tools: list[Tool] | None = None
    add_generation_prompt: bool | None = True


class PromptFields(TemplateFields, kw_only=True):
    """A text or a conversation, of requests that are not answered with text."""

    prompt: str | None = None
    content: str | None = None
    """llama-server's name of `prompt`; its default is to add no special tokens."""
    add_special: bool | None = None
    """llama-server's name of `add_special_tokens`."""
    with_pieces: bool | None = False
    """Accepted; `return_token_strs` gives the texts."""
    return_token_strs: bool | None = False
    messages: Annotated[list[ChatMessage], Meta(min_length=1)] | None = None
    continue_final_message: bool | None = False
    add_special_tokens: bool | None = None
    """By default true for a text and false for a conversation."""
    documents: list[dict[str, str]] | None = None
    chat_template: str | None = None
    reasoning_effort: ReasoningEffort | None = None
