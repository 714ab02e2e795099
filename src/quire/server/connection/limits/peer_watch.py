"""Whether a client that has ended its side of the connection still listens.

The end of a client's bytes says that it will send no more. It may have closed its sending side
alone and wait for the reply, or it may have gone: TCP tells the two apart only when the server
sends something, which the system of a client that has gone refuses.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

_FIRST_LOOK_S = 0.02
"""A reply that is complete by then is sent as ever."""
_MAX_INTERVAL_S = 1.0


class PeerWatch:
    """Looks at the socket again and again, and has a byte sent that brings the answer."""

    __slots__ = ("_fd", "_interval_s", "_loop", "_on_gone", "_send_early_byte", "_timer")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        send_early_byte: Callable[[], None],
        on_gone: Callable[[], None],
    ) -> None:
        """`send_early_byte` sends a byte of the reply ahead of time, if it is known already."""
        self._loop = loop
        self._fd = fd
        self._send_early_byte = send_early_byte
        self._on_gone = on_gone
        self._interval_s = _FIRST_LOOK_S
        self._timer: asyncio.TimerHandle = loop.call_later(_FIRST_LOOK_S, self._look)

    def stop(self) -> None:
        """The connection has ended."""
        self._timer.cancel()

    def _look(self) -> None:
        if _is_hung_up(self._fd):
            self._on_gone()
            return
        self._send_early_byte()
        self._timer = self._loop.call_later(self._interval_s, self._look)
        self._interval_s = min(2 * self._interval_s, _MAX_INTERVAL_S)


def _is_hung_up(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, 0)  # that a peer is gone is told whatever is asked for
    return bool(poller.poll(0))
