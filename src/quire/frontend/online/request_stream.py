"""`RequestStream`: the outputs of one request; and `LoopBinding`, which binds an `AsyncLLM` to one
event loop at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, cast

from quire.errors import ConfigError, EngineGenerateError, QuireError, RequestError
from quire.frontend.request_record import AnyOutput, RequestRecord
from quire.outputs import PoolingOutput, PoolingRequestOutput, RequestOutput
from quire.params import RequestOutputKind
from quire.system.turn_queue import TurnQueue


class BoundWork(Protocol):
    """Work that belongs to the bound loop."""

    def __bool__(self) -> bool:
        """Whether any work is in flight, so that no other loop can be bound."""

    def abandon_all(self) -> None:
        """End all work without notifying its callers, whose loop is closed."""


class LoopBinding:
    """Binds an engine to the event loop that calls it.

    A call from another loop raises ConfigError while work of the bound loop is in flight;
    otherwise the other loop is bound instead.
    """

    def __init__(
        self, work: BoundWork, on_bound: Callable[[asyncio.AbstractEventLoop], None]
    ) -> None:
        """`on_bound` is called for each loop that is bound, while no work is in flight."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self._work = work
        self._on_bound = on_bound
        self._num_waiting = 0
        """Calls of the bound loop that wait for something other than the outputs of requests."""
        self._lock = threading.Lock()
        """Guards the choice of the loop against loops of other threads."""

    @contextmanager
    def bound(self) -> Iterator[None]:
        """Bind the running loop for the block, which must not await."""
        with self._lock:
            self._bind()
            yield

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Bind the running loop for the block, unless the loop is closed before the end."""
        with self._lock:
            self._bind()
            self._num_waiting += 1
            loop = self.loop
        try:
            yield
        finally:
            with self._lock:
                if self.loop is loop:
                    self._num_waiting -= 1

    def _bind(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is self.loop:
            return
        if self.loop is not None and self.loop.is_closed():
            self._work.abandon_all()
            self._num_waiting = 0
        elif self._work or self._num_waiting:
            raise ConfigError(
                "an engine serves one event loop at a time, and another loop is using it: "
                "create an engine for each loop, or call it from one loop"
            )
        self.loop = loop
        self._on_bound(loop)


class RequestStream:
    """An async iterator over one request's outputs.

    Holds at most one output: outputs that arrive while the reader is busy are merged into it, so
    that a slow reader needs no more memory than its own answer. Ends after the last output, or
    raises the error that ended the request. Closing it early aborts the request.
    """

    def __init__(
        self,
        record: RequestRecord,
        close: Callable[[Iterable[RequestStream]], None],
        wakeups: TurnQueue,
        wake_up: asyncio.Event | None = None,
        owner: object = None,
    ) -> None:
        """`close` ends the unfinished requests of streams. `wakeups` sets `wake_up`, which streams
        may share, when there is an output. `owner` is kept alive."""
        self.record = record
        record.sink = self
        self._is_delta = record.input.params.output_kind is RequestOutputKind.DELTA
        self._close = close
        self._owner = owner
        self._wakeups = wakeups
        self._wake_up = wake_up or asyncio.Event()
        self._pending: AnyOutput | None = None
        self._error: QuireError | None = None

    @property
    def is_done(self) -> bool:
        """Whether no more output will arrive; an output may still be pending."""
        return self.record.sink is not self

    def put(self, output: AnyOutput) -> None:
        """Add the next output; it is merged with a pending one."""
        if isinstance(output, PoolingRequestOutput):
            if output.error is not None:
                self._error = EngineGenerateError(output.error)
        elif output.finished and any(one.finish_reason == "error" for one in output.outputs):
            message = output.error or "the engine failed"
            if self.record.is_unmet:
                self._error = RequestError(message, parameter=self.record.unmet_parameter)
            else:
                self._error = EngineGenerateError(message)
        pending = self._pending
        if not isinstance(pending, RequestOutput) or not isinstance(output, RequestOutput):
            self._pending = output
        else:
            pending.add(output, aggregate=self._is_delta)
        self._wakeups.add(self._wake_up.set)

    def fail(self, error: QuireError) -> None:
        """End the stream: taking from it raises `error`."""
        self._error = error
        self._wake_up.set()

    def take(self) -> RequestOutput | None:
        """The pending output, without waiting; None if there is none. Of a pooling request it is a
        `PoolingRequestOutput`. Raises the stream's error."""
        pending, self._pending = self._pending, None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return cast("RequestOutput | None", pending)

    async def pooled(self) -> PoolingRequestOutput[PoolingOutput]:
        """Wait for the result of a pooling request. Raises the stream's error, and
        EngineGenerateError if the stream was closed."""
        try:
            return cast("PoolingRequestOutput[PoolingOutput]", await self.__anext__())
        except StopAsyncIteration:
            raise EngineGenerateError("the request was closed before its result came") from None

    @property
    def request_id(self) -> str:
        """The user's request id."""
        return self.record.input.request_id

    def get_nowait(self) -> RequestOutput | None:
        """Same as `take`."""
        return self.take()

    async def get(self) -> RequestOutput:
        """Wait for the next output. Raises StopAsyncIteration after the last one."""
        return await self.__anext__()

    def close(self) -> None:
        """Abort the request if it has not ended; no more output will arrive. Idempotent."""
        self._close([self])

    def end(self) -> bool:
        """Detach the stream from its record; the caller must abort the request. Returns True if the
        request has not ended."""
        if self.is_done:
            return False
        self.record.sink = None
        self._wake_up.set()
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
            await self._wake_up.wait()
            self._wake_up.clear()
