"""`ChatTemplates`: chooses the template of a conversation. Runs no template."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from quire.chat.job import DEFAULT_SECONDS, VARIABLES, ChatInput, RenderJob
from quire.chat.template_files import MAX_TEMPLATE_BYTES, read_templates
from quire.config import ModelConfig
from quire.config.checkpoint.model_files import read_optional_json_object
from quire.errors import RequestError
from quire.units import format_bytes

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
