"""`ChatRenderer`: a conversation to a prompt, for blocking callers: `LLM.chat` and `quire run`.

A template runs in a child process here as on a server. `sandbox` limits a template, but a thread
inside one long operation of the interpreter cannot be stopped, and delays Ctrl+C. So no template
ever runs in the process that holds the model.
"""

from __future__ import annotations

import threading

from quire.chat.job import ChatInput
from quire.chat.plain import plain_chat
from quire.chat.process.renderer_process import RenderProcess
from quire.chat.templates import ChatTemplates


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
