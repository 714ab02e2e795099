"""`AsyncChatRenderer`: conversations to prompts beside an event loop, for the server.

The loop only sends a job to a child process and waits for the reply. A rendering that hangs costs
its own request an error, and the others at most their turn: of the child processes it occupies one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from quire.chat.job import DEFAULT_SECONDS, ChatInput
from quire.chat.process.exchange import Exchange
from quire.chat.process.renderer_process import RenderProcess
from quire.chat.templates import ChatTemplates
from quire.errors import CapacityError, QuireError, RequestError

NUM_PROCESSES = 2
"""Renderings at once; the second child is started when the first one is busy for the first time."""
_CLOSED = "no more chats are rendered: this is shutting down"


@dataclass(frozen=True, slots=True)
class RenderBounds:
    """What renderings may take together."""

    max_seconds: float = DEFAULT_SECONDS
    """Processor time of one rendering."""
    max_waiting: int = 1_000_000
    """Conversations that wait for their turn."""
    max_wait_s: float = 3600.0
    """How long one may wait for its turn."""


class AsyncChatRenderer:
    """Renders conversations in the order in which they come. Owned by one event loop."""

    def __init__(self, templates: ChatTemplates, bounds: RenderBounds | None = None) -> None:
        self.templates = templates
        self._bounds = bounds or RenderBounds()
        self._idle: list[RenderProcess] = []
        """Empty while somebody waits."""
        self._busy: set[RenderProcess] = set()
        self._waiting: deque[asyncio.Future[RenderProcess]] = deque()
        self._is_closed = False

    def start(self) -> None:
        """Starts a child, so that it is up when the first conversation comes."""
        if self.templates and not self._idle and not self._busy and not self._is_closed:
            self._idle.append(RenderProcess())

    async def render(self, chat: ChatInput) -> str:
        """The prompt. Encode it without special tokens: the template has written them.

        `chat` holds what came as JSON. Raises RequestError, with the template's own words where it
        refuses the conversation; CapacityError if too many wait, or this one has for too long;
        QuireError if there is no child process or if it dies.
        """
        job = self.templates.job(chat, self._bounds.max_seconds)
        process = await self._take()
        try:
            exchange = Exchange(process, job, self._give_back)
        except RequestError:
            self._give_back(process)
            raise
        try:
            return await exchange.text
        except QuireError as error:
            if self._is_closed and not isinstance(error, RequestError):
                raise CapacityError(_CLOSED) from None
            raise

    def close(self) -> None:
        """Ends the child processes; what they render fails. Idempotent."""
        self._is_closed = True
        for turn in self._waiting:
            self._fail(turn, CapacityError(_CLOSED))
        for process in self._busy:
            process.kill()
        while self._idle:
            self._idle.pop().close()

    async def _take(self) -> RenderProcess:
        """A process of one's own, as soon as it is one's turn."""
        if self._is_closed:
            raise CapacityError(_CLOSED)
        if len(self._busy) < NUM_PROCESSES:
            process = self._idle_process() or RenderProcess()
            self._busy.add(process)
            return process
        if len(self._waiting) >= self._bounds.max_waiting:
            raise CapacityError(f"{len(self._waiting)} chats wait for the chat template already")
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[RenderProcess] = loop.create_future()
        self._waiting.append(turn)
        late = CapacityError(
            f"this chat has waited {self._bounds.max_wait_s:g} s for the chat template"
        )
        timer = loop.call_later(self._bounds.max_wait_s, self._fail, turn, late)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._give_back(turn.result())  # the turn came in the same moment
            raise
        finally:
            timer.cancel()
            with suppress(ValueError):  # it is there no more, unless its time was up
                self._waiting.remove(turn)

    def _idle_process(self) -> RenderProcess | None:
        while self._idle:
            process = self._idle.pop()
            if process.is_open:
                return process
            process.close()  # somebody has killed it
        return None

    def _give_back(self, process: RenderProcess) -> None:
        """Hands the process, or another in place of a dead one, to whoever waits longest."""
        self._busy.discard(process)
        if self._is_closed:
            process.close()
            return
        turn = next((turn for turn in self._waiting if not turn.done()), None)
        try:
            process = process if process.is_open else RenderProcess()
        except QuireError as error:
            if turn is not None:
                self._fail(turn, error)
            return
        if turn is None:
            self._idle.append(process)
        else:
            self._busy.add(process)
            turn.set_result(process)

    @staticmethod
    def _fail(turn: asyncio.Future[RenderProcess], error: QuireError) -> None:
        if not turn.done():
            turn.set_exception(error)
