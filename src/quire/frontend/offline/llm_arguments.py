"""What callers give to `LLM`'s methods, in the one form that the rest wants, or an error that
names the argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from quire.errors import RequestError, quoted
from quire.inputs import PromptType

_FORMATS = ("auto", "string", "openai")


def as_prompts(prompts: Any) -> list[PromptType]:
    """One prompt or several: a text, a dict or a list of token ids is one. Raises RequestError."""
    if isinstance(prompts, (str, dict)):
        return [cast(PromptType, prompts)]
    if hasattr(prompts, "tolist"):  # an array
        prompts = prompts.tolist()
    if isinstance(prompts, (bytes, bytearray, memoryview)) or not isinstance(prompts, Iterable):
        raise RequestError(
            "prompts must be a text, a list of token ids, a dict with prompt or "
            f"prompt_token_ids, or a list of these, got {quoted(prompts)}",
            parameter="prompts",
            value=prompts,
        )
    found = list(prompts)
    if found and all(type(item) is int for item in found):
        return [found]
    return found


def one_each(name: str, value: Any, kind: type, count: int) -> list[Any]:
    """One value for all, or as many as there are prompts. Raises TypeError or RequestError."""
    if isinstance(value, kind):
        return [value] * count
    if not isinstance(value, Sequence) or not all(isinstance(each, kind) for each in value):
        raise TypeError(
            f"{name} must be of type {kind.__name__}, or a list of these, got {quoted(value)}"
        )
    if len(value) != count:
        raise RequestError(
            f"The lengths of prompts ({count}) and {name} ({len(value)}) must be the same.",
            parameter=name,
        )
    return list(value)


def as_conversations(messages: Any) -> list[Any]:
    """One conversation, a list of messages, or several of these. Raises RequestError."""
    if not isinstance(messages, (list, tuple)):
        raise _error("messages", messages, "a list of messages, or a list of such lists")
    if not messages:
        raise RequestError("messages cannot be empty", parameter="messages")
    if not isinstance(messages[0], (list, tuple)):
        return [messages]
    for conversation in messages:
        if not isinstance(conversation, (list, tuple)):
            raise _error("messages", conversation, "lists of messages, or all messages")
    return list(messages)


def check_chat_options(
    *,
    chat_template: Any,
    chat_template_content_format: Any,
    add_generation_prompt: Any,
    continue_final_message: Any,
    tools: Any,
    chat_template_kwargs: Any,
) -> None:
    """Raises RequestError for the first that is not of its type."""
    if chat_template is not None and not isinstance(chat_template, str):
        raise _error("chat_template", chat_template, "a text, or a template's name")
    is_format = isinstance(chat_template_content_format, str)
    if not is_format or chat_template_content_format not in _FORMATS:
        what = "auto, string or openai"
        raise _error("chat_template_content_format", chat_template_content_format, what)
    for name, value in (
        ("add_generation_prompt", add_generation_prompt),
        ("continue_final_message", continue_final_message),
    ):
        if not (isinstance(value, int) and value in (0, 1)):
            raise _error(name, value, "True or False")
    if tools is not None and not (
        isinstance(tools, (list, tuple)) and all(isinstance(tool, Mapping) for tool in tools)
    ):
        raise _error("tools", tools, "a list of dicts")
    if chat_template_kwargs is not None and not (
        isinstance(chat_template_kwargs, Mapping)
        and all(isinstance(name, str) for name in chat_template_kwargs)
    ):
        raise _error("chat_template_kwargs", chat_template_kwargs, "a dict with texts as keys")


def _error(name: str, value: object, what: str) -> RequestError:
    return RequestError(f"{name} must be {what}, got {quoted(value)}", parameter=name, value=value)
