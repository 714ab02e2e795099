"""`AsyncChatRenderer`: conversations to prompts without blocking an event loop, for the server.

The loop only sends a job to a child process and waits for the reply. A rendering that hangs
occupies one of the child processes until it is stopped; its request then ends with an error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from quire.chat.job import DEFAULT_SECONDS, ChatInput
from quire.chat.renderer_process import PendingRender, RenderProcess
from quire.chat.templates import ChatTemplates
from quire.errors import CapacityError, QuireError, RequestError

NUM_PROCESSES = 2
"""Most renderings at once. The second child is started when it is needed, and ended when it has not
been for a while."""
_SPARE_S = 3.0
"""Seconds for which the second child is kept without work."""
_CLOSED = "no more chats are rendered: this is shutting down"


@dataclass(frozen=True, slots=True)
class RenderBounds:
    """Limits of the renderings of one server."""

    max_seconds: float = DEFAULT_SECONDS
    """Processor time of one rendering."""
    max_waiting: int = 1_000_000
    """Most conversations that wait for a free child process."""
    max_wait_s: float = 3600.0
    """Seconds that a conversation may wait for a free child process."""


class AsyncChatRenderer:
    """Renders conversations in the order in which they come. Owned by one event loop."""

    def __init__(self, templates: ChatTemplates, bounds: RenderBounds | None = None) -> None:
        self.templates = templates
        self._bounds = bounds or RenderBounds()
        self._idle: list[RenderProcess] = []
        """Empty while `_waiting` holds a conversation. The last one is used first."""
        self._spare_timer: asyncio.TimerHandle | None = None
        """Set while the first of several idle processes is not used."""
        self._busy: set[RenderProcess] = set()
        self._waiting: deque[asyncio.Future[RenderProcess]] = deque()
        self._is_closed = False

    def start(self) -> None:
        """Starts a child ahead of the first conversation."""
        if self.templates and not self._idle and not self._busy and not self._is_closed:
            self._idle.append(RenderProcess())

    async def render(self, chat: ChatInput) -> str:
        """The prompt. Encode it without special tokens: the template has written them.

        `chat` holds what came as JSON. Raises RequestError, with the template's own words if it
        refuses the conversation; CapacityError if too many wait, or this one has for too long;
        QuireError if the child process cannot be started or dies.
        """
        job = self.templates.job(chat, self._bounds.max_seconds)
        process = await self._take()
        try:
            pending = PendingRender(process, job, self._give_back)
        except RequestError:
            self._give_back(process)
            raise
        try:
            return await pending.text
        except QuireError as error:
            if self._is_closed and not isinstance(error, RequestError):
                raise CapacityError(_CLOSED) from None
            raise

    def close(self) -> None:
        """Ends the child processes; what they render fails. Idempotent."""
        self._is_closed = True
        for waiter in self._waiting:
            self._fail(waiter, CapacityError(_CLOSED))
        for process in self._busy:
            process.kill()
        self._stop_spare_timer()
        while self._idle:
            self._idle.pop().close()

    async def _take(self) -> RenderProcess:
        """Waits for a free process and reserves it. First come, first served."""
        if self._is_closed:
            raise CapacityError(_CLOSED)
        if len(self._busy) < NUM_PROCESSES:
            process = self._idle_process() or RenderProcess()
            self._busy.add(process)
            return process
        if len(self._waiting) >= self._bounds.max_waiting:
            raise CapacityError(f"{len(self._waiting)} chats wait for the chat template already")
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[RenderProcess] = loop.create_future()
        self._waiting.append(waiter)
        late = CapacityError(
            f"this chat has waited {self._bounds.max_wait_s:g} s for the chat template"
        )
        timer = loop.call_later(self._bounds.max_wait_s, self._fail, waiter, late)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._give_back(waiter.result())  # cancelled after the process was assigned
            raise
        finally:
            timer.cancel()
            with suppress(ValueError):  # it may be removed already
                self._waiting.remove(waiter)

    def _idle_process(self) -> RenderProcess | None:
        while self._idle:
            process = self._idle.pop()
            if not self._idle:
                self._stop_spare_timer()
            if process.is_open:
                return process
            process.close()  # the child was killed from outside
        return None

    def _stop_spare_timer(self) -> None:
        if self._spare_timer is not None:
            self._spare_timer.cancel()
            self._spare_timer = None

    def _end_spare(self) -> None:
        """Ends a process that was not used for `_SPARE_S`, if there is another one."""
        self._spare_timer = None
        if len(self._idle) + len(self._busy) > 1:
            process = self._idle.pop(0)
            asyncio.get_running_loop().run_in_executor(None, process.close)

    def _give_back(self, process: RenderProcess) -> None:
        """Gives the process, or a new one if it is dead, to the conversation that waits longest."""
        self._busy.discard(process)
        if self._is_closed:
            process.close()
            return
        waiter = next((waiter for waiter in self._waiting if not waiter.done()), None)
        try:
            process = process if process.is_open else RenderProcess()
        except QuireError as error:
            if waiter is not None:
                self._fail(waiter, error)
            return
        if waiter is None:
            self._idle.append(process)
            if len(self._idle) > 1 and self._spare_timer is None:
                loop = asyncio.get_running_loop()
                self._spare_timer = loop.call_later(_SPARE_S, self._end_spare)
        else:
            self._busy.add(process)
            waiter.set_result(process)

    @staticmethod
    def _fail(waiter: asyncio.Future[RenderProcess], error: QuireError) -> None:
        if not waiter.done():
            waiter.set_exception(error)
