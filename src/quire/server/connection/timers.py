"""When a client must send the next bytes, and whether a half-closed connection still has one."""

from __future__ import annotations

import asyncio
import math
import select
from collections.abc import Callable
from enum import Enum

from quire.server.args import ServerArgs
from quire.server.connection.shared_state import ConnectionSlot

_FIRST_CHECK_S = 0.02
"""A reply that is complete before the first check is sent as usual."""
_MAX_INTERVAL_S = 1.0
LATE_S = 1.0
"""A limit that has passed for so long before it is looked at begins again with so many seconds: the
process was stopped meanwhile (SIGSTOP), and what the client has sent or read is not known yet."""


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


class Phase(Enum):
    """Event that a connection waits for. The value is the option with the time limit, if it has
    one."""

    HEAD = "header_timeout"
    """The head of a request."""
    BODY = "body_timeout"
    """The rest of a request that the application has begun to answer."""
    REPLY = "no limit: the application"
    """The application's reply."""
    IDLE = "keep_alive_timeout"
    """Another request, or none."""
    LINGER = "linger_timeout"
    """The client to read the last reply."""
    CLOSED = "no limit: the sender"
    """The last bytes to be sent."""


_WITHOUT_LIMIT = (Phase.REPLY, Phase.CLOSED)
_BUSY = (Phase.BODY, Phase.REPLY, Phase.CLOSED)


class PhaseTimer:
    """Calls `on_late` if a phase takes longer than its limit. Sets the slot idle or busy.

    A connection changes its phase several times per request. So a timer is not cancelled when the
    phase changes: if it fires too early it is set again.
    """

    __slots__ = ("_args", "_due", "_loop", "_on_late", "_slot", "_timer", "phase")

    def __init__(
        self, args: ServerArgs, slot: ConnectionSlot, on_late: Callable[[Phase], None]
    ) -> None:
        """Begins in phase CLOSED, which has no limit."""
        self._args = args
        self._slot = slot
        self._on_late = on_late
        self._loop = asyncio.get_running_loop()
        self._due = math.inf
        """End of the phase's limit, by the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None
        self.phase = Phase.CLOSED

    def enter(self, phase: Phase) -> None:
        """Begins a phase; nothing changes if it is the current one."""
        if phase is self.phase:
            return
        self.phase = phase
        if phase is not Phase.HEAD:
            self._slot.had_request = True
        if phase in _BUSY:
            self._slot.set_busy()
        else:
            self._slot.set_idle()
        if phase in _WITHOUT_LIMIT:
            self._due = math.inf
            return
        self._due = self._loop.time() + getattr(self._args, phase.value)
        if self._timer is not None and self._timer.when() > self._due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(self._due, self._check)

    def stop(self) -> None:
        """The connection is lost: removes the references between timer and connection."""
        self.phase = Phase.CLOSED
        self._due = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        del self._on_late

    def _check(self) -> None:
        self._timer = None
        if self._due < self._loop.time() - LATE_S:
            self._due = self._loop.time() + LATE_S
        if self._due > self._loop.time():
            if self._due < math.inf:
                self._timer = self._loop.call_at(self._due, self._check)
            return
        self._due = math.inf
        self._on_late(self.phase)
