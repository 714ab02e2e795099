"""The sending side of a connection: a reply as bytes, and the time until the client reads them."""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus
from typing import TYPE_CHECKING

from quire.log import get_logger
from quire.server.connection.shared_state import LATE_S
from quire.server.http.error_forms import OVERLOADED
from quire.server.http.problems import Problem
from quire.units import KiB

if TYPE_CHECKING:
    from quire.server.connection.request_parser import Headers


_VERSION = b"HTTP/1.1"
_PHRASES = {status.value: status.phrase for status in HTTPStatus} | {OVERLOADED: "Overloaded"}
_STATUS_LINES = {
    status: b"%s %d %s\r\n" % (_VERSION, status, phrase.encode())
    for status, phrase in _PHRASES.items()
}
_WITHOUT_BODY = frozenset({204, 304})
_MAX_EARLY_ZEROS = 8
_FORBIDDEN = re.compile(rb"[\x00\r\n]")


class ReplyWriter:
    """Makes the bytes of one reply, part by part.

    `early_byte` returns bytes before their part is known: every status line begins with the
    version, and a chunk's length may begin with zeros.
    """

    __slots__ = (
        "_has_body", "_is_chunked", "_is_http_1_0", "_is_to_head", "_num_early", "_num_left",
        "is_begun", "keeps_alive",
    )  # fmt: skip

    def __init__(self, method: str, version: str) -> None:
        """`method` and HTTP `version` are the request's."""
        self._is_to_head = method == "HEAD"
        self._is_http_1_0 = version == "1.0"
        self.is_begun = False
        """Whether the head is written."""
        self._is_chunked = False
        self._has_body = True
        self._num_left: int | None = None
        self._num_early = 0
        self.keeps_alive = True
        """After `head`: whether the connection stays open after the reply."""

    def head(self, status: int, headers: Headers, keeps_alive: bool) -> bytes:
        """Status line and headers. Raises ValueError if a header cannot be sent."""
        lines = [_STATUS_LINES[status]]
        for name, value in headers:
            if _FORBIDDEN.search(value):
                raise ValueError(f"the header {name!r} has a line break in it")
            name = name.lower()
            if name == b"connection":
                keeps_alive = keeps_alive and value.lower() != b"close"
                continue
            if name == b"content-length":
                self._num_left = int(value)
            lines.append(b"%s: %s\r\n" % (name, value))
        self._has_body = not self._is_to_head and status not in _WITHOUT_BODY
        if self._has_body and self._num_left is None:
            if self._is_http_1_0:
                keeps_alive = False  # the end of the connection is the end of the body
            else:
                self._is_chunked = True
                lines.append(b"transfer-encoding: chunked\r\n")
        if not keeps_alive:
            lines.append(b"connection: close\r\n")
        self.keeps_alive = keeps_alive
        self.is_begun = True
        lines.append(b"\r\n")
        data = b"".join(lines)[self._num_early :]
        self._num_early = 0
        return data

    def body(self, data: bytes, is_last: bool) -> bytes:
        """A part of the body. Raises ValueError if the body does not match its content-length."""
        if not self._has_body:
            return b""
        if self._is_chunked:
            if data or is_last:  # then a chunk's length follows the early zeros
                self._num_early = 0
            parts = (b"%x\r\n" % len(data), data, b"\r\n") if data else ()
            return b"".join((*parts, b"0\r\n\r\n" if is_last else b""))
        if self._num_left is not None:
            self._num_left -= len(data)
            if self._num_left < 0 or (is_last and self._num_left):
                raise ValueError("the body has not the length that its header says")
        return data

    def problem(self, problem: Problem, headers: Headers) -> bytes:
        """A complete error reply; the connection closes after it."""
        own, body = problem.reply()
        return self.head(problem.status, [*headers, *own], False) + self.body(body, True)

    def early_byte(self) -> bytes:
        """The next byte of the reply if it is known already, else nothing."""
        at = self._num_early
        if self.is_begun and self._is_chunked and at < _MAX_EARLY_ZEROS:
            byte = b"0"
        elif not self.is_begun and at < len(_VERSION):
            byte = _VERSION[at : at + 1]
        else:
            return b""
        self._num_early += 1
        return byte


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
        loop = asyncio.get_running_loop()
        if self._timer is not None and self._timer.when() < loop.time() - LATE_S:
            self._timer = loop.call_later(LATE_S, self._check)
            return
        if 0 < self._transport.get_write_buffer_size() <= self._num_left - _MIN_TAKEN_BYTES:
            self._start_timer()
            return
        self._timer = None
        logger.warning(
            "a client has not read on for slow_reader_timeout %g s: cut off", self._timeout_s
        )
        self._transport.abort()
