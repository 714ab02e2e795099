"""Parses bytes to requests: httptools, with limits of sizes."""

from __future__ import annotations

from typing import Protocol

import httptools

from quire.server.args import ServerArgs
from quire.server.connection.request_head import Headers, RequestHead
from quire.server.http.problems import HttpError, Problem


class FramingBudget:
    """One limit for request line, headers, trailers, chunk extensions and chunk framing.

    The parser gives no offsets, so bytes are charged per piece that is fed to it: all its bytes
    that are not body. The shortest form of a chunk's framing counts as body; otherwise a long body
    in small chunks would exceed the limit.
    """

    __slots__ = ("_limit", "_num_body_bytes", "_num_spent")

    def __init__(self, limit: int) -> None:
        """`limit` in bytes, for each request."""
        self._limit = limit
        self._num_spent = 0
        self._num_body_bytes = 0

    def add_body(self, num_bytes: int) -> None:
        """`num_bytes` of the current piece are a chunk of the body."""
        num_hex_digits = (num_bytes.bit_length() + 3) // 4
        self._num_body_bytes += num_bytes + num_hex_digits + 4  # a CR LF after length and chunk

    def charge(self, num_bytes: int) -> bool:
        """Charges a piece of `num_bytes` that was fed. Returns whether the limit still holds."""
        self._num_spent += max(0, num_bytes - self._num_body_bytes)
        self._num_body_bytes = 0
        return self._num_spent <= self._limit

    def restart(self) -> None:
        """A request has ended. Bytes after it in the same piece are not charged."""
        self._num_spent = 0
        self._num_body_bytes = 0


_FRAMING_HEADERS = frozenset({b"content-length", b"transfer-encoding", b"connection"})


class RequestSink(Protocol):
    """Receives requests in parts. `begin_request` may raise HttpError to refuse one."""

    def begin_request(self, head: RequestHead) -> None:
        """The head of a request is complete."""

    def add_body(self, data: bytes) -> None:
        """A part of its body."""

    def end_request(self) -> None:
        """The request is complete."""


class RequestParser:
    """Parses the requests of one connection; refuses malformed and too large ones.

    Keeps only the head of the current request. Trailers are dropped.
    """

    __slots__ = (
        "_budget", "_headers", "_is_cut_short", "_is_head_complete", "_is_repeated",
        "_max_header_bytes", "_max_url_bytes", "_num_ended", "_parser", "_refusal", "_sink",
        "_target", "is_in_request",
    )  # fmt: skip

    def __init__(self, sink: RequestSink, args: ServerArgs) -> None:
        self._sink = sink
        self._max_url_bytes = args.max_url_bytes
        self._max_header_bytes = args.max_header_bytes
        self._parser = httptools.HttpRequestParser(self)
        self._budget = FramingBudget(args.max_header_bytes)
        self._target = b""
        self._headers: Headers = []
        self._is_head_complete = False
        self._is_cut_short = False
        """Whether httptools ended the request after its head, because of an `Upgrade` header."""
        self._is_repeated = False
        """Whether the current head was passed to the sink already."""
        self._refusal: Problem | None = None
        self._num_ended = 0
        self.is_in_request = False
        """Whether a request has begun and is not complete."""

    def feed(self, piece: bytes) -> None:
        """Parses the next bytes and calls the sink. Raises HttpError if they are refused; nothing
        may be fed after that."""
        num_ended = self._num_ended
        try:
            self._parse(piece)
        except httptools.HttpParserCallbackError:
            if self._refusal is None:
                raise
            raise HttpError(self._refusal) from None
        except httptools.HttpParserError as error:
            raise HttpError(Problem(400, f"Invalid HTTP request: {error}.")) from None
        if num_ended != self._num_ended:
            self._budget.restart()
        elif not self._budget.charge(len(piece)):
            raise self._too_large()

    def close(self) -> None:
        """Ends parsing: removes the reference cycle with httptools' parser."""
        del self._parser

    def _parse(self, data: bytes) -> None:
        while data:
            num_parsed = len(data)
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                (num_parsed,) = upgrade.args
            data = data[num_parsed:]
            if self._is_cut_short:
                self._is_cut_short, self._is_repeated = False, True
                self._parser.feed_data(self._head_without_upgrade())
                self._is_repeated = False

    def _head_without_upgrade(self) -> bytes:
        """A head with the same framing and without upgrade, after which httptools parses the
        body."""
        version = self._parser.get_http_version().encode()
        fields = [
            name + b": " + value + b"\r\n"
            for name, value in self._headers
            if name in _FRAMING_HEADERS
        ]
        return b"POST / HTTP/" + version + b"\r\n" + b"".join(fields) + b"\r\n"

    def _too_large(self) -> HttpError:
        return HttpError(Problem(431, "The request headers are larger than max_header_bytes."))

    # What httptools calls

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        if not self._is_repeated:
            self.is_in_request = True
            self._is_head_complete = False
            self._target = b""
            self._headers = []

    def on_url(self, url: bytes) -> None:
        """A part of the request's target."""
        if not self._is_repeated:
            self._target += url
            if len(self._target) > self._max_url_bytes:
                self._refusal = Problem(414, "The URL is longer than max_url_bytes.")
                raise HttpError(self._refusal)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer."""
        if not self._is_head_complete:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is complete."""
        if self._is_repeated:
            return
        self._is_head_complete = True
        try:
            self._sink.begin_request(self._head())
        except HttpError as error:
            self._refusal = error.problem
            raise
        self._is_cut_short = self._parser.should_upgrade()

    def on_body(self, body: bytes) -> None:
        """A part of the body, or of one chunk of it."""
        self._budget.add_body(len(body))
        self._sink.add_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        if not self._is_cut_short:
            self.is_in_request = False
            self._num_ended += 1
            self._sink.end_request()

    def _head(self) -> RequestHead:
        headers = self._headers
        size = len(self._target) + sum([len(name) + len(value) + 4 for name, value in headers])
        if size > self._max_header_bytes:
            raise self._too_large()
        parser = self._parser
        method, version = parser.get_method(), parser.get_http_version()
        keeps_alive = parser.should_keep_alive()
        return RequestHead.of(method, version, self._target, headers, keeps_alive)
