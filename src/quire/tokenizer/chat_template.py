"""`ChatRenderer`: a conversation to the prompt text that its model was trained on.

Built beside the tokenizer from a checkpoint's chat templates; used by `LLM.chat` and the
server. Templates run in `template_sandbox`; knows no tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from quire.config.checkpoint import read_json_object, read_optional_json_object, read_text
from quire.errors import CheckpointError, ConfigError, RequestError, quoted
from quire.tokenizer.chat_messages import plain, template_messages
from quire.tokenizer.content_format import ContentFormat, detect_content_format
from quire.tokenizer.template_sandbox import compile_template, render_bounded
from quire.units import MiB, format_bytes

MAX_TEMPLATE_BYTES = 1 * MiB
_CONTINUED = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marks the end of the message to be continued; cut off after rendering."""
_RESERVED = {
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message",
    "chat_template", "tokenize",
}  # fmt: skip


class ChatRenderer:
    """The chat templates of one model. Immutable; any thread may render."""

    def __init__(
        self,
        templates: Mapping[str, str],
        special_tokens: Mapping[str, str],
        content_format: ContentFormat | None = None,
    ) -> None:
        """`templates` by name: `default`, `tool_use`, ...; `special_tokens` by role.

        `content_format` forces what is otherwise detected per template.
        """
        self.templates = dict(templates)
        self._special_tokens = dict(special_tokens)
        self._forced_format = content_format

    @classmethod
    def from_directory(
        cls,
        directory: Path,
        special_tokens: Mapping[str, str],
        *,
        chat_template: str | None = None,
        content_format: ContentFormat | None = None,
    ) -> ChatRenderer:
        """With the templates of a checkpoint; `chat_template`, a file or a text, replaces them.

        Raises CheckpointError, and ConfigError for a `chat_template` that is neither.
        """
        if chat_template is not None:
            templates = {"default": read_chat_template(chat_template)}
        else:
            templates = read_templates(directory)
        return cls(templates, special_tokens, content_format)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt. Encode it without special tokens: the template has written them.

        `chat_template` is a text or the name of one of `templates`; `kwargs` are further
        variables of the template. Raises RequestError, with the template's own words where it
        refuses the conversation.
        """
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
                parameter="continue_final_message",
            )
        check_template_kwargs(kwargs)
        source = self._source(chat_template, tools is not None)
        chat = template_messages(messages, self._forced_format or detect_content_format(source))
        final_text = _mark_end(chat) if continue_final_message else None
        variables = {
            **self._special_tokens,
            **plain(kwargs, "chat_template_kwargs"),
            "messages": chat,
            "tools": plain(tools, "tools"),
            "documents": plain(documents, "documents"),
            "add_generation_prompt": add_generation_prompt,
        }
        rendered = _render(source, variables)
        return rendered if final_text is None else _cut_at_mark(rendered, final_text)

    def content_format(self, chat_template: str | None = None) -> ContentFormat:
        """Whether the template wants content as text (`string`) or as parts (`openai`)."""
        return self._forced_format or detect_content_format(self._source(chat_template, False))

    def _source(self, chosen: str | None, has_tools: bool) -> str:
        if chosen is not None:
            source = self.templates.get(chosen, chosen)
            if len(source) > MAX_TEMPLATE_BYTES:
                raise RequestError(
                    f"chat_template is longer than {format_bytes(MAX_TEMPLATE_BYTES)}",
                    parameter="chat_template",
                )
            return source
        if has_tools and "tool_use" in self.templates:
            return self.templates["tool_use"]
        if "default" in self.templates:
            return self.templates["default"]
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


def check_template_kwargs(kwargs: Mapping[str, Any]) -> None:
    """Raises RequestError for a template variable that has a parameter of its own."""
    for name in kwargs:
        if name in _RESERVED:
            raise RequestError(
                f"chat_template_kwargs must not hold {name!r}; use the parameter of that name",
                parameter="chat_template_kwargs",
                value=name,
            )


def read_chat_template(given: str) -> str:
    """The `chat_template` option: the path of a file, or the template itself."""
    if any(mark in given for mark in "{}\n"):
        return given
    path = Path(given).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"chat_template={quoted(given)} is neither a file nor a Jinja template, which has "
            "{{ }} or {% %} in it"
        )
    return read_text(path, max_bytes=MAX_TEMPLATE_BYTES)


def read_templates(directory: Path) -> dict[str, str]:
    """A checkpoint's templates by name; empty if it has none.

    Files of their own count before tokenizer_config.json, and that before chat_template.json.
    """
    templates: dict[str, str] = {}
    main = directory / "chat_template.jinja"
    if main.is_file():
        templates["default"] = read_text(main, max_bytes=MAX_TEMPLATE_BYTES)
    for path in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = read_text(path, max_bytes=MAX_TEMPLATE_BYTES)
    if templates:
        return templates
    config = directory / "tokenizer_config.json"
    held = read_optional_json_object(config).get("chat_template")
    if held is None and (directory / "chat_template.json").is_file():
        config = directory / "chat_template.json"
        held = read_json_object(config).get("chat_template")
    return _named(held, config)


def _named(held: Any, path: Path) -> dict[str, str]:
    if held is None:
        return {}
    if isinstance(held, str):
        named: dict[Any, Any] = {"default": held}
    elif isinstance(held, list) and all(isinstance(entry, dict) for entry in held):
        named = {entry.get("name"): entry.get("template") for entry in held}
    elif isinstance(held, dict):
        named = held
    else:
        named = {None: None}
    for name, source in named.items():
        if not isinstance(name, str) or not isinstance(source, str):
            raise CheckpointError(f"{path}: chat_template is neither a text nor texts by name")
        if len(source) > MAX_TEMPLATE_BYTES:
            raise CheckpointError(f"{path}: chat_template {name!r} is too long")
    return named


def _render(source: str, variables: Mapping[str, Any]) -> str:
    try:
        return render_bounded(compile_template(source), variables)
    except jinja2.TemplateSyntaxError as error:
        message = f"the chat template is not valid: {error.message} (line {error.lineno})"
    except jinja2.TemplateError as error:
        message = str(error.message or type(error).__name__)
    except Exception as error:  # a template can raise anything that an expression can
        message = f"the chat template fails with {type(error).__name__}: {error}"
    raise _error(message)


def _error(message: str) -> RequestError:
    return RequestError(message, parameter="messages")


def _mark_end(chat: list[dict[str, Any]]) -> str:
    """Appends the mark to the last message's text, which is returned without it."""
    content = chat[-1].get("content")
    if isinstance(content, list) and content:
        text = str(content[-1]["text"])
        content[-1]["text"] = text + _CONTINUED
        return text
    if not isinstance(content, str):
        raise _error("continue_final_message is set, but the final message has no content")
    chat[-1]["content"] = content + _CONTINUED
    return content


def _cut_at_mark(rendered: str, final_text: str) -> str:
    begin = rendered.rfind(_CONTINUED.strip())
    if begin < 0 or final_text.strip() not in rendered:
        raise _error(
            "continue_final_message is set, but the final message does not appear in the "
            "rendered chat: the template leaves out some of it"
        )
    if rendered.startswith(_CONTINUED, begin):
        return rendered[:begin]
    return rendered[:begin].rstrip()
