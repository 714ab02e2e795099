"""Sends bytes to one client, and drops a client that does not read them."""

from __future__ import annotations

import asyncio

from quire.log import get_logger
from quire.units import KiB

logger = get_logger(__name__)

_MIN_TAKEN_BYTES = 48 * KiB
"""Bytes that a transport sends between `pause_writing` and `resume_writing`."""


class Sender:
    """The sending side of a transport.

    While the transport's buffer is full, and after `close`, the client must read `_MIN_TAKEN_BYTES`
    or all that is left every `timeout_s`; otherwise the connection is aborted.
    """

    __slots__ = ("_has_room", "_is_closed", "_num_left", "_timeout_s", "_timer", "_transport")

    def __init__(self, transport: asyncio.Transport, timeout_s: float) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._has_room: asyncio.Event | None = None
        """Set when a full buffer has room again; None while there is room."""
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._num_left = 0
        """Bytes in the buffer when the timer was set."""

    @property
    def is_full(self) -> bool:
        """Whether a writer should `drain` first."""
        return self._has_room is not None

    def write(self, data: bytes) -> None:
        """Sends bytes; drops them if the connection is closed."""
        if data and not self._transport.is_closing():
            self._transport.write(data)

    async def drain(self) -> None:
        """Returns once there is room for more bytes, or the connection is lost."""
        if self._has_room is not None:
            await self._has_room.wait()

    def pause(self) -> None:
        """The transport's buffer is full."""
        self._has_room = asyncio.Event()
        self._start_timer()

    def resume(self) -> None:
        """The transport's buffer has room again."""
        if self._has_room is not None:
            self._has_room.set()
            self._has_room = None
        if not self._is_closed:
            self._stop_timer()

    def close(self) -> None:
        """Closes the connection after the bytes in the buffer are sent."""
        self._is_closed = True
        self._transport.close()
        self._start_timer()

    def connection_lost(self) -> None:
        """Wakes a writer that waits in `drain`."""
        self.resume()
        self._stop_timer()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._num_left = self._transport.get_write_buffer_size()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._timeout_s, self._check)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        if 0 < self._transport.get_write_buffer_size() <= self._num_left - _MIN_TAKEN_BYTES:
            self._start_timer()
            return
        self._timer = None
        logger.warning(
            "a client has not read on for slow_reader_timeout %g s: cut off", self._timeout_s
        )
        self._transport.abort()
