"""`PeerWatch`: whether a half-closed connection still has a client."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

_FIRST_CHECK_S = 0.02
"""A reply that is complete before the first check is sent as usual."""
_MAX_INTERVAL_S = 1.0


class PeerWatch:
    """Checks the socket at growing intervals, and has one byte of the reply sent each time."""

    __slots__ = ("_fd", "_interval_s", "_loop", "_on_gone", "_send_early_byte", "_timer")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        send_early_byte: Callable[[], None],
        on_gone: Callable[[], None],
    ) -> None:
        """`send_early_byte` sends the next byte of the reply, if it is known already."""
        self._loop = loop
        self._fd = fd
        self._send_early_byte = send_early_byte
        self._on_gone = on_gone
        self._interval_s = _FIRST_CHECK_S
        self._timer: asyncio.TimerHandle = loop.call_later(_FIRST_CHECK_S, self._check)

    def stop(self) -> None:
        """The connection has ended."""
        self._timer.cancel()

    def _check(self) -> None:
        if _is_hung_up(self._fd):
            self._on_gone()
            return
        self._send_early_byte()
        self._timer = self._loop.call_later(self._interval_s, self._check)
        self._interval_s = min(2 * self._interval_s, _MAX_INTERVAL_S)


def _is_hung_up(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, 0)  # POLLHUP and POLLERR are always reported
    return bool(poller.poll(0))
