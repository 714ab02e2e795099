"""uvicorn's HTTP protocol with the bounds that it lacks: header size, URL size, header time.

Runs below ASGI, once per connection, on the event loop. Also hands each request a way to cut
its connection at once, for clients that stop reading.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from quire.server.args import ServerArgs
from quire.server.http.problems import Problem

ABORT_KEY = "quire.abort_connection"
"""In a request's state: a function that drops the connection and what is buffered for it."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """Refuses headers that are too many or too slow before anything is built from them."""

    max_header_bytes: int
    max_url_bytes: int
    header_timeout_s: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_in_headers = True
        self._num_header_bytes = 0
        self._header_timer: asyncio.TimerHandle | None = None

    @classmethod
    def bounded_by(cls, args: ServerArgs) -> type[BoundedHttpProtocol]:
        """A subclass with these limits, as uvicorn wants a class."""
        limits = {
            "max_header_bytes": args.max_header_bytes,
            "max_url_bytes": args.max_url_bytes,
            "header_timeout_s": args.header_timeout,
        }
        return type("ConfiguredHttpProtocol", (cls,), limits)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_in_headers:
            if self._header_timer is None:
                self._start_header_timer()
            self._num_header_bytes += len(data)
            # The last piece may hold the beginning of a body: only what precedes it was measured
            # exactly, which bounds what the parser can have kept of unfinished headers.
            if self._num_header_bytes - len(data) > self.max_header_bytes:
                self._refuse(431, "The request headers are larger than max_header_bytes.")
                return
        super().data_received(data)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self.max_url_bytes:
            self._refuse(414, "The URL is longer than max_url_bytes.")

    def on_headers_complete(self) -> None:
        self._is_in_headers = False
        self._stop_header_timer()
        if self.transport.is_closing():
            return
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.max_header_bytes:
            self._refuse(431, "The request headers are larger than max_header_bytes.")
            return
        self.scope["state"][ABORT_KEY] = self.transport.abort
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_headers = True
        self._num_header_bytes = 0
        if not self.transport.is_closing():
            super().on_message_complete()

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(self.header_timeout_s, self._headers_too_slow)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _headers_too_slow(self) -> None:
        if not self.transport.is_closing():
            self._refuse(408, "The request headers took longer than header_timeout to arrive.")

    def _refuse(self, status: int, message: str) -> None:
        """Answers below ASGI and closes."""
        self._stop_header_timer()
        if self.transport.is_closing():
            return
        body = Problem(status, message).body()
        self.transport.write(
            STATUS_LINE[status]
            + b"content-type: application/json\r\nconnection: close\r\ncontent-length: "
            + str(len(body)).encode()
            + b"\r\n\r\n"
            + body
        )
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)
