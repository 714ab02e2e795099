"""`transcriber_of`: the transcriber of a served model, for the routes for audio and for chats about
audio; `SpeechRun`: one transcription for one HTTP request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING

from quire.errors import EngineGenerateError
from quire.transcription.records import Segment, Transcript

if TYPE_CHECKING:
    from quire.server.generation.run import Deadline
    from quire.server.served_model import ServedModel
    from quire.transcription.transcriber import Items, Transcriber


def transcriber_of(model: ServedModel, salt: str | None = None) -> Transcriber | None:
    """The transcriber of a model; None: it is not of Whisper's kind. Requests with the same `salt`
    share what is cached of sounds. Raises HttpError 503 while the model is being loaded."""
    if model.transcriber is None:
        from quire.transcription.engine import transcriber_for  # for such models alone

        model.transcriber = transcriber_for(model.loaded_engine())
    return None if model.transcriber is None else model.transcriber.within(salt)


class SpeechRun:
    """The transcription of one sound, in a task of its own. `close` ends it at any time."""

    def __init__(self, items: Items, deadline: Deadline) -> None:
        self._deadline = deadline
        self._queue: asyncio.Queue[Transcript | Segment | None] = asyncio.Queue()
        """None: there are no more."""
        self._task = asyncio.get_running_loop().create_task(self._read(items))
        self._task.add_done_callback(self._on_done)

    async def _read(self, items: Items) -> None:
        async with aclosing(items):
            async for item in items:
                self._queue.put_nowait(item)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # asyncio logs one that is not read; a client that left reads none
        self._queue.put_nowait(None)

    async def header(self) -> Transcript:
        """The first item, to be awaited once. Raises what the transcription raises."""
        first = await self._next()
        if not isinstance(first, Transcript):
            raise EngineGenerateError("the transcription ended before it began")
        return first

    async def segments(self) -> AsyncIterator[Segment]:
        """The segments; they end early once the run is closed."""
        while isinstance(item := await self._next(), Segment):
            yield item

    async def _next(self) -> Transcript | Segment | None:
        """The next item; None at the end. Raises HttpError 503 at the deadline."""
        seconds = self._deadline.at - asyncio.get_running_loop().time()
        try:
            item = await asyncio.wait_for(self._queue.get(), max(0.0, seconds))
        except asyncio.TimeoutError:
            self.close()
            raise self._deadline.error() from None
        if item is None and not self._task.cancelled():
            self._task.result()
        return item

    def close(self) -> None:
        """Ends the transcription, which frees what it uses. Idempotent."""
        self._task.cancel()
