"""Facts about chats for `quire explain`. The chat template is rendered to find them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.chat.prefix_reuse import Message
    from quire.chat.templates import ChatTemplates
    from quire.config import EngineConfig

Rows = list[tuple[str, str]]


def reply_rows(config: EngineConfig) -> Rows:
    """How replies are parsed, and how the format was found."""
    templates = _templates(config)
    if templates is None:
        return []
    from quire.chat.renderer import ChatRenderer
    from quire.parsers.detection.finder import find_blocking
    from quire.parsers.detection.names import FormatChoice

    choice = FormatChoice.of(None, config.structured_outputs.reasoning_parser)
    renderer = ChatRenderer(templates)
    try:
        found = find_blocking(choice, config.model, renderer)
    finally:
        renderer.close()
    calls = str(found.tools or "not parsed: the model's call format is unknown")
    if found.tools is None and not found.shows_tools:
        calls = "not parsed: the chat template shows no tools"
    return [("reasoning", str(found.reasoning or "not parsed")), ("tool calls", calls)]


def turn_rows(config: EngineConfig) -> Rows:
    """How much of a prompt the prefix cache covers in the next turn of a chat."""
    templates = _templates(config) if config.cache.enable_prefix_caching else None
    if not templates:
        return []
    from quire.chat.job import ChatInput
    from quire.chat.prefix_reuse import probe_prefix_reuse
    from quire.chat.renderer import ChatRenderer

    renderer = ChatRenderer(templates)

    def render(
        messages: list[Message], tools: list[Message] | None, variables: dict[str, Any], /
    ) -> str:
        return renderer.render(ChatInput(messages, tools=tools, chat_template_kwargs=variables))

    has_reasoning = any("think" in source for source in templates.templates.values())
    try:
        return [
            ("  next turn of a chat", str(probe_prefix_reuse(render, has_reasoning=has_reasoning)))
        ]
    finally:
        renderer.close()


def _templates(config: EngineConfig) -> ChatTemplates | None:
    """The chat templates of the model; None without a tokenizer."""
    path = config.model.tokenizer_path
    if path is None:
        return None
    from quire.chat.templates import ChatTemplates
    from quire.config.checkpoint.model_files import read_optional_json_object
    from quire.tokenizer.special_tokens import read_special_tokens

    special = read_special_tokens(path, read_optional_json_object(path / "tokenizer_config.json"))
    return ChatTemplates.of_model(config.model, special.roles)
