"""The checked head of a request: method, target and headers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import httptools

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
