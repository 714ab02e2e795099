"""Renders in this process, as the child does: fast, and with its limits within a test's reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.chat.job import DEFAULT_SECONDS, ChatInput
from quire.chat.renderer import plain_chat
from quire.chat.rendering import render
from quire.chat.templates import ChatTemplates

HELLO = [{"role": "user", "content": "hi"}]


def rendered_here(
    templates: str | Mapping[str, str] | ChatTemplates,
    messages: Sequence[Any] = HELLO,
    *,
    roles: Mapping[str, str] | None = None,
    max_seconds: float = DEFAULT_SECONDS,
    **options: Any,
) -> str:
    """The prompt of a template, of several by name, or of a model's; `options` of `ChatInput`."""
    if isinstance(templates, str):
        templates = {"default": templates}
    if not isinstance(templates, ChatTemplates):
        templates = ChatTemplates(templates, roles or {})
    return render(templates.job(plain_chat(ChatInput(messages, **options)), max_seconds))
