"""The time in which a client must read what was written for it."""

from __future__ import annotations

import asyncio

from quire.log import get_logger

logger = get_logger(__name__)

_MIN_TAKEN_BYTES = 48 * 1024
"""What a transport sends between "its buffer is full" and "go on writing"."""


class SlowReaderWatch:
    """Drops the connection of a client that leaves a buffer unread for too long.

    It runs while nothing is added to the buffer: because it is full, or because the connection
    only waits for it to become empty. The client must take `_MIN_TAKEN_BYTES`, or all, each time.
    """

    __slots__ = ("_loop", "_size", "_timeout_s", "_timer", "_transport")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, timeout_s: float
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._timeout_s = timeout_s
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """From now on nothing is added to the buffer."""
        self.stop()
        self._size = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(self._timeout_s, self._look)

    def stop(self) -> None:
        """The buffer may grow again, or is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        if 0 < self._transport.get_write_buffer_size() <= self._size - _MIN_TAKEN_BYTES:
            self.start()
            return
        self._timer = None
        logger.warning(
            "a client has not read on for slow_reader_timeout %g s: cut off", self._timeout_s
        )
        self._transport.abort()
