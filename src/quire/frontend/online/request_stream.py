"""`RequestStream`: the outputs of one request, waiting for whoever asked for them.

Filled by the output processor, drained by an async iterator, both on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quire.errors import EngineGenerateError, QuireError
from quire.outputs import RequestOutput
from quire.params import RequestOutputKind


class RequestStream:
    """An async iterator over one request's outputs.

    Holds at most one output: whatever comes while the reader is busy is merged into it, so
    that a slow reader costs no more memory than its own answer. Ends after the last output;
    raises what ended the request otherwise. Closing it early aborts the request.
    """

    def __init__(
        self,
        request_id: str,
        kind: RequestOutputKind,
        abort: Callable[[], None],
        news: asyncio.Event | None = None,
    ) -> None:
        """`news`, which streams may share, is set whenever there is something to take."""
        self.request_id = request_id
        self.is_done = False
        """Nothing more will be put; there may still be something to take."""
        self._is_delta = kind is RequestOutputKind.DELTA
        self._abort = abort
        self._news = news or asyncio.Event()
        self._pending: RequestOutput | None = None
        self._error: QuireError | None = None

    def put(self, output: RequestOutput) -> None:
        """The next output; merged with one that has not been taken yet."""
        if self.is_done:
            return
        output.request_id = self.request_id
        if output.finished:
            self.is_done = True
            if any(one.finish_reason == "error" for one in output.outputs):
                self._error = EngineGenerateError(output.error or "the engine failed")
        if self._pending is None:
            self._pending = output
        else:
            self._pending.add(output, aggregate=self._is_delta)
        self._news.set()

    def fail(self, error: QuireError) -> None:
        """Ends the stream: taking from it raises `error`, once what is there is taken."""
        if not self.is_done:
            self.is_done = True
            self._error = error
            self._news.set()

    def take(self) -> RequestOutput | None:
        """What is there, without waiting; None if nothing. Raises what the stream ended with."""
        pending, self._pending = self._pending, None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return pending

    def close(self) -> None:
        """Ends the request if it has not ended; nothing more will be put. Idempotent."""
        if self.end():
            self._abort()

    def end(self) -> bool:
        """Nothing more will be put; ending the request is left to the caller. True if it has not
        ended."""
        if self.is_done:
            return False
        self.is_done = True
        self._news.set()
        return True

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> RequestOutput:
        while True:
            output = self.take()
            if output is not None:
                return output
            if self.is_done:
                raise StopAsyncIteration
            await self._news.wait()
            self._news.clear()
