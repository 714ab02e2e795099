"""Parses bytes to requests: httptools, with limits of sizes, and checks of each request's head."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import unquote

import httptools

from quire.server.args import ServerArgs
from quire.server.http.auth import PROBE_PATHS
from quire.server.http.problems import HttpError, Problem

Headers = list[tuple[bytes, bytes]]

_VERSIONS = frozenset({"1.0", "1.1"})
_HOST = re.compile(rb"[^\s/?#@\\]*")


@dataclass(slots=True)
class RequestHead:
    """The head of one request."""

    method: str
    version: str
    """HTTP version: `1.0` or `1.1`."""
    raw_path: bytes
    """The path as the client sent it, without the query."""
    query: bytes
    headers: Headers
    """Names in lower case."""
    keeps_alive: bool
    """Whether the client allows further requests after the reply."""
    expects_continue: bool
    """Whether the client waits for `100 Continue` before it sends the body."""

    @property
    def is_probe(self) -> bool:
        """Whether it asks for health or readiness."""
        return self.raw_path in PROBE_PATHS and self.method in {"GET", "HEAD"}

    @classmethod
    def of(
        cls, method: bytes, version: str, target: bytes, headers: Headers, keeps_alive: bool
    ) -> RequestHead:
        """Raises HttpError for an unsupported or invalid head."""
        if version not in _VERSIONS:
            raise HttpError(Problem(505, "Only HTTP/1.1 and HTTP/1.0 are understood."))
        if method == b"CONNECT":
            raise HttpError(
                Problem(405, "This server is not a proxy and does not support CONNECT.")
            )
        expects_continue = _check(headers)
        try:
            url = httptools.parse_url(target)
        except httptools.HttpParserInvalidURLError:
            raise HttpError(Problem(400, "The request target is not a valid URL.")) from None
        if url.host is not None:
            headers = _with_host(headers, target)
            _check(headers)
        return cls(
            method=method.decode("ascii"),
            version=version,
            raw_path=url.path or b"/",
            query=url.query or b"",
            headers=headers,
            keeps_alive=keeps_alive and version != "1.0",
            expects_continue=expects_continue and version != "1.0",
        )

    def scope(self, root_path: str) -> dict[str, Any]:
        """ASGI's connection scope, without the addresses. The path begins with `root_path`, which a
        proxy may have left there or stripped."""
        root_path = root_path.rstrip("/")
        prefix, raw_path = root_path.encode(), self.raw_path
        if prefix and (raw_path == prefix or raw_path.startswith(prefix + b"/")):
            raw_path = raw_path[len(prefix) :] or b"/"
        path = raw_path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": self.version,
            "method": self.method,
            "root_path": root_path,
            "path": root_path + (unquote(path) if "%" in path else path),
            "raw_path": prefix + raw_path,
            "query_string": self.query,
            "headers": self.headers,
            "state": {},
        }


def _check(headers: Headers) -> bool:
    """Whether the client waits for `100 Continue`. Raises HttpError for headers that a proxy and
    this server may read differently (request smuggling)."""
    num_hosts, expects_continue = 0, False
    for name, value in headers:
        if name == b"host":
            num_hosts += 1
            if num_hosts > 1 or not _HOST.fullmatch(value):
                raise HttpError(Problem(400, "The Host header is not one host and port."))
        elif name == b"transfer-encoding" and value.lower() != b"chunked":
            raise HttpError(Problem(501, "Of all transfer codings only chunked is understood."))
        elif name == b"expect":
            expects_continue = value.lower() == b"100-continue"
    return expects_continue


def _with_host(headers: Headers, target: bytes) -> Headers:
    """With a target like `http://name/path`, its name replaces the `Host` header (RFC 9112)."""
    authority = target.partition(b"://")[2]
    for end in (b"/", b"?", b"#"):
        authority = authority.partition(end)[0]
    others = [(name, value) for name, value in headers if name != b"host"]
    return [(b"host", authority), *others]


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
