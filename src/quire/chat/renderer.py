"""`ChatRenderer`: renders chat templates in a child process, for `LLM.chat` and the commands.

A caller's Python values are converted to JSON values, so that they can be sent there.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Mapping
from typing import Any

from quire.chat.job import MAX_NESTING, VARIABLES, ChatInput
from quire.chat.renderer_process import RenderProcess
from quire.chat.templates import ChatTemplates
from quire.errors import RequestError


def plain_chat(chat: ChatInput) -> ChatInput:
    """The same with JSON values alone. Raises RequestError for a value that JSON does not have."""
    return dataclasses.replace(
        chat,
        messages=_plain(chat.messages, "messages"),
        tools=_plain(chat.tools, "tools"),
        documents=_plain(chat.documents, "documents"),
        variables=_plain(chat.variables, VARIABLES),
    )


def _plain(value: Any, what: str, depth: int = 0) -> Any:
    """A copy of the value made of dicts, lists, strings, numbers, booleans and None."""
    if depth > MAX_NESTING:
        raise RequestError(f"{what} is nested more than {MAX_NESTING} deep", parameter=what)
    if value is None or type(value) in (str, int, bool):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise RequestError(f"{what} holds {value}, which is not a JSON value", parameter=what)
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
        f"{what} holds a {type(value).__name__}, which is not a JSON value", parameter=what
    )


class ChatRenderer:
    """Renders one conversation at a time; any thread may call. `close` ends the child process."""

    def __init__(self, templates: ChatTemplates) -> None:
        self.templates = templates
        self._lock = threading.Lock()
        self._process: RenderProcess | None = None

    def start(self) -> None:
        """Starts the child ahead of the first conversation."""
        with self._lock:
            self._open_process()

    def render(self, chat: ChatInput) -> str:
        """The prompt. Encode it without special tokens: the template has written them.

        Raises RequestError, with the template's own words where it refuses the conversation, and
        QuireError if the child process cannot be started or dies.
        """
        job = self.templates.job(plain_chat(chat))
        with self._lock:
            return self._open_process().render(job)

    def close(self) -> None:
        """Ends the child. Idempotent; the next conversation starts another."""
        with self._lock:
            if self._process is not None:
                self._process.close()

    def _open_process(self) -> RenderProcess:
        if self._process is not None and not self._process.is_open:
            self._process.close()
            self._process = None
        if self._process is None:
            self._process = RenderProcess()
        return self._process
