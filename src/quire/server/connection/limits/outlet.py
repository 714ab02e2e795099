"""The bytes for one client: sent as fast as it reads, and no longer than it reads at all."""

from __future__ import annotations

import asyncio

from quire.log import get_logger
from quire.units import KiB

logger = get_logger(__name__)

_MIN_TAKEN_BYTES = 48 * KiB
"""What a transport sends between "its buffer is full" and "go on writing"."""


class Outlet:
    """The sending side of a transport.

    A client has `timeout_s` to take `_MIN_TAKEN_BYTES`, or all there is, when nothing more can be
    written: because the buffer is full, or because the connection ends. One that takes less is
    cut off.
    """

    __slots__ = ("_emptied", "_is_closed", "_num_left", "_timeout_s", "_timer", "_transport")

    def __init__(self, transport: asyncio.Transport, timeout_s: float) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._emptied: asyncio.Event | None = None
        """Set once a full buffer has room again; None while there is room."""
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._num_left = 0
        """What the client had to take when the timer was set."""

    @property
    def is_empty(self) -> bool:
        """Whether all is sent."""
        return self._transport.get_write_buffer_size() == 0

    @property
    def is_full(self) -> bool:
        """Whether more should wait for `drain`."""
        return self._emptied is not None

    @property
    def can_end(self) -> bool:
        """Whether the server's side can be closed alone."""
        return self._transport.can_write_eof()

    def write(self, data: bytes) -> None:
        """Sends bytes; drops them if the connection is closed."""
        if data and not self._transport.is_closing():
            self._transport.write(data)

    async def drain(self) -> None:
        """Returns once there is room for more bytes, or the connection is lost."""
        if self._emptied is not None:
            await self._emptied.wait()

    def fill(self) -> None:
        """The transport says that its buffer is full."""
        self._emptied = asyncio.Event()
        self._watch()

    def empty(self) -> None:
        """The transport says that its buffer has room again."""
        if self._emptied is not None:
            self._emptied.set()
            self._emptied = None
        if not self._is_closed:
            self._unwatch()

    def end(self) -> None:
        """Closes the server's side, after what is being sent."""
        self._transport.write_eof()

    def close(self) -> None:
        """Closes the connection, after what is being sent."""
        self._is_closed = True
        self._transport.close()
        self._watch()

    def abort(self) -> None:
        """Drops the connection, and what is being sent."""
        self._transport.abort()

    def lose(self) -> None:
        """The connection is lost."""
        self.empty()
        self._unwatch()

    def _watch(self) -> None:
        self._unwatch()
        self._num_left = self._transport.get_write_buffer_size()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._timeout_s, self._look)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        if 0 < self._transport.get_write_buffer_size() <= self._num_left - _MIN_TAKEN_BYTES:
            self._watch()
            return
        self._timer = None
        logger.warning(
            "a client has not read on for slow_reader_timeout %g s: cut off", self._timeout_s
        )
        self._transport.abort()
