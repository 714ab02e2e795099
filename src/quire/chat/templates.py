"""Reads the chat templates of a checkpoint, or the user's own template. Runs no template."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire.chat.job import DEFAULT_SECONDS, VARIABLES, ChatInput, RenderJob
from quire.config import ModelConfig
from quire.config.checkpoint.model_files import (
    read_json_object,
    read_optional_json_object,
    read_text,
)
from quire.errors import CheckpointError, ConfigError, RequestError, quoted
from quire.units import MiB, format_bytes

MAX_TEMPLATE_BYTES = 1 * MiB
_MAX_TEMPLATES = 64
"""Most templates of one model. Published models have up to four."""


def read_chat_template(given: str) -> str:
    """The `chat_template` option: the path of a file, or the template itself.

    Raises ConfigError for what is neither, and CheckpointError for a file that cannot be used.
    """
    if any(mark in given for mark in "{}\n"):
        if len(given) > MAX_TEMPLATE_BYTES:
            raise ConfigError(f"chat_template is longer than {format_bytes(MAX_TEMPLATE_BYTES)}")
        return given
    try:
        path = Path(given).expanduser()
        is_file = path.is_file()
    except (OSError, RuntimeError) as error:  # a name that is too long, `~` without a home
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"chat_template={quoted(given)} cannot be read: {reason}") from None
    if not is_file:
        raise ConfigError(
            f"chat_template={quoted(given)} is neither a file nor a Jinja template, which has "
            "{{ }} or {% %} in it"
        )
    return read_text(path, max_bytes=MAX_TEMPLATE_BYTES)


def read_templates(directory: Path) -> dict[str, str]:
    """A checkpoint's templates by name; empty if it has none.

    Order of precedence: template files, tokenizer_config.json, chat_template.json. Raises
    CheckpointError.
    """
    paths = {path.stem: path for path in (directory / "additional_chat_templates").glob("*.jinja")}
    main = directory / "chat_template.jinja"
    if main.is_file():
        paths = {"default": main, **paths}
    _check_number(len(paths), directory)
    if paths:
        return {name: read_text(path, max_bytes=MAX_TEMPLATE_BYTES) for name, path in paths.items()}
    config = directory / "tokenizer_config.json"
    value = read_optional_json_object(config).get("chat_template")
    if value is None and (directory / "chat_template.json").is_file():
        config = directory / "chat_template.json"
        value = read_json_object(config).get("chat_template")
    return _named(value, config)


def _named(value: Any, path: Path) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        pairs: list[tuple[Any, Any]] = [("default", value)]
    elif isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        pairs = [(entry.get("name"), entry.get("template")) for entry in value]
    elif isinstance(value, dict):
        pairs = list(value.items())
    else:
        pairs = [(None, None)]
    _check_number(len(pairs), path)
    for name, source in pairs:
        if not isinstance(name, str) or not isinstance(source, str):
            raise CheckpointError(f"{path}: chat_template is neither a text nor texts by name")
        if len(source) > MAX_TEMPLATE_BYTES:
            raise CheckpointError(f"{path}: chat_template {name!r:.50} is too long")
    return dict(pairs)


def _check_number(count: int, path: Path) -> None:
    if count > _MAX_TEMPLATES:
        raise CheckpointError(f"{path}: {count} chat templates; at most {_MAX_TEMPLATES} are read")


_RESERVED = {
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message",
    "chat_template", "tokenize", "self",
}  # fmt: skip


class ChatTemplates:
    """Templates by name: `default`, `tool_use`, ...; and special tokens by role. Immutable."""

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self.templates = dict(templates)
        self._special_tokens = dict(special_tokens)

    @classmethod
    def of_model(cls, model: ModelConfig, special_tokens: Mapping[str, str]) -> ChatTemplates:
        """The templates of a checkpoint, or the user's own template. Raises CheckpointError."""
        if model.chat_template is not None:
            return cls({"default": model.chat_template}, special_tokens)
        return cls(read_templates(model.tokenizer_path or model.path), special_tokens)

    @classmethod
    def of_files(cls, model: ModelConfig) -> ChatTemplates:
        """The same, with the special tokens of the tokenizer's files. Raises CheckpointError."""
        from quire.tokenizer.special_tokens import read_special_tokens

        path = model.tokenizer_path or model.path
        config = read_optional_json_object(path / "tokenizer_config.json")
        return cls.of_model(model, read_special_tokens(path, config).roles)

    def __bool__(self) -> bool:
        return bool(self.templates)

    def job(self, chat: ChatInput, max_seconds: float = DEFAULT_SECONDS) -> RenderJob:
        """All that rendering the conversation needs. Raises RequestError."""
        if chat.continue_final_message and chat.add_generation_prompt:
            raise RequestError(
                "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
                parameter="continue_final_message",
            )
        for name in chat.variables or ():
            if name in _RESERVED:
                raise RequestError(
                    f"{VARIABLES} must not hold {name!r}; use the parameter of that name",
                    parameter=VARIABLES,
                    value=name,
                )
        chosen = self._chosen(chat)
        return RenderJob(
            chat=dataclasses.replace(chat, chat_template=None),
            template_name=chosen if chosen in self.templates else "(given)",
            template=self.templates.get(chosen, chosen),
            special_tokens=self._special_tokens,
            max_seconds=max_seconds,
        )

    def _chosen(self, chat: ChatInput) -> str:
        """The name of one of `templates`, or a template itself."""
        if chat.chat_template is not None:
            if len(chat.chat_template) > MAX_TEMPLATE_BYTES:
                raise RequestError(
                    f"chat_template is longer than {format_bytes(MAX_TEMPLATE_BYTES)}",
                    parameter="chat_template",
                )
            return chat.chat_template
        for name in ("tool_use", "default") if chat.tools is not None else ("default",):
            if name in self.templates:
                return name
        if self.templates:
            names = ", ".join(sorted(self.templates))
            raise RequestError(
                f"this model has several chat templates and no default; name one of: {names}",
                parameter="chat_template",
            )
        raise RequestError(
            "this model has no chat template: give one with chat_template, or send a prompt "
            "instead of messages",
            parameter="chat_template",
        )
