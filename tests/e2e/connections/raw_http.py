"""HTTP by hand, over plain sockets: for clients that do what no library lets them do."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from running_server import RunningServer

HOST = b"Host: localhost\r\n"
VERSION = b"GET /version HTTP/1.1\r\n" + HOST + b"\r\n"
HEALTH = b"GET /health HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
LONG = {"prompt": "abc", "max_tokens": 400, "ignore_eos": True, "temperature": 1.0}
"""A completion that takes a while."""


def connect(server: RunningServer, timeout_s: float = 20) -> socket.socket:
    parts = urlsplit(server.url)
    if parts.scheme == "unix":
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(timeout_s)
        client.connect(parts.path)
        return client
    assert parts.hostname
    return socket.create_connection((parts.hostname, parts.port), timeout=timeout_s)


@contextmanager
def many(server: RunningServer, count: int, first: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections, each with some bytes sent."""
    clients = [connect(server) for _ in range(count)]
    try:
        for client in clients:
            client.sendall(first)
        yield clients
    finally:
        for client in clients:
            client.close()


def post(body: object, path: str = "/v1/completions", headers: bytes = b"") -> bytes:
    data = json.dumps(body).encode()
    head = b"POST %s HTTP/1.1\r\n%s%sContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (path.encode(), HOST, headers, len(data)) + data


def chunked_head(path: str = "/tokenize", headers: bytes = b"") -> bytes:
    """The head of a POST whose body comes in chunks."""
    return (
        b"POST %s HTTP/1.1\r\n%s%sContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n" % (path.encode(), HOST, headers)
    )


def chunks(data: bytes, size: int) -> bytes:
    """A whole body in chunks."""
    parts = [data[i : i + size] for i in range(0, len(data), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Replies:
    """What a server sends on one connection, reply by reply."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._data = b""

    def next(self) -> Reply:
        """The next reply, of whatever status."""
        head = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        version, status = head[0].split(" ")[:2]
        assert version == "HTTP/1.1", head[0]
        pairs = (line.split(": ", 1) for line in head[1:] if line)
        headers = {name.lower(): value for name, value in pairs}
        if status == "100":
            return Reply(100, headers, b"")
        return Reply(int(status), headers, self._body(headers))

    def rest(self) -> bytes:
        """All that comes until the server ends the connection."""
        while self._more():
            pass
        data, self._data = self._data, b""
        return data

    def _body(self, headers: dict[str, str]) -> bytes:
        if "content-length" in headers:
            return self._take(int(headers["content-length"]))
        if headers.get("transfer-encoding") != "chunked":
            return self.rest()
        body = b""
        while size := int(self._until(b"\r\n"), 16):
            body += self._take(size)
            assert self._take(2) == b"\r\n"
        assert self._until(b"\r\n") == b"\r\n"
        return body

    def _until(self, end: bytes) -> bytes:
        while end not in self._data:
            assert self._more(), f"the connection ended after {self._data[-300:]!r}"
        head, _, self._data = self._data.partition(end)
        return head + end

    def _take(self, size: int) -> bytes:
        while len(self._data) < size:
            assert self._more(), f"the connection ended after {self._data[-300:]!r}"
        data, self._data = self._data[:size], self._data[size:]
        return data

    def _more(self) -> bool:
        data = self._client.recv(65536)
        self._data += data
        return bool(data)


def ask(server: RunningServer, data: bytes) -> Reply:
    """One request on a connection of its own."""
    with connect(server) as client:
        client.sendall(data)
        return Replies(client).next()


def is_healthy(server: RunningServer) -> bool:
    return ask(server, HEALTH).status == 200


def num_finished(server: RunningServer, reason: str) -> int:
    """Requests that have ended for this reason."""
    head = b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n"
    text = ask(server, head).body.decode()
    [value] = re.findall(rf'request_success_total{{.*="{reason}".*}} (\S+)', text)
    return int(float(value))


def num_files(server: RunningServer) -> int:
    """Files and connections that the server's process has open."""
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def resident_mib(server: RunningServer) -> float:
    """Memory of the server's process that is its own."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))
