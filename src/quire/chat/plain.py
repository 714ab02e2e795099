"""Converts a caller's Python values to JSON values, so that they can be sent to a child process.

Used for `LLM.chat`; requests of a server are JSON already.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from quire.chat.job import MAX_NESTING, ChatInput
from quire.errors import RequestError


def plain_chat(chat: ChatInput) -> ChatInput:
    """The same with JSON values alone. Raises RequestError for a value that JSON does not have."""
    return dataclasses.replace(
        chat,
        messages=_plain(chat.messages, "messages"),
        tools=_plain(chat.tools, "tools"),
        documents=_plain(chat.documents, "documents"),
        chat_template_kwargs=_plain(chat.chat_template_kwargs, "chat_template_kwargs"),
    )


def _plain(value: Any, what: str, depth: int = 0) -> Any:
    """A copy of the value made of dicts, lists, strings, numbers, booleans and None."""
    if depth > MAX_NESTING:
        raise RequestError(f"{what} is nested more than {MAX_NESTING} deep", parameter=what)
    if value is None or type(value) in (str, int, bool):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise RequestError(f"{what} holds {value}, which is no JSON value", parameter=what)
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, what, depth + 1) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner, what, depth + 1) for inner in value]
    if callable(dump := getattr(value, "model_dump", None)):
        return _plain(dump(), what, depth + 1)
    raise RequestError(
        f"{what} holds a {type(value).__name__}, which is no JSON value", parameter=what
    )
