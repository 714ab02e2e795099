"""Plain sockets that send what no library would."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

_TIMEOUT_S = 120.0


def connect(port: int, receive_bytes: int | None = None) -> socket.socket:
    """`receive_bytes`: of the socket's buffer."""
    client = socket.socket()
    if receive_bytes is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(_TIMEOUT_S)
    client.connect(("127.0.0.1", port))
    return client


@contextmanager
def many(
    port: int, count: int, first: bytes = b"", receive_bytes: int | None = None
) -> Iterator[list[socket.socket]]:
    """So many connections, each with some bytes sent, but for those that the server refuses."""
    clients = []
    try:
        for _ in range(count):
            with suppress(OSError):
                client = connect(port, receive_bytes)
                client.sendall(first)
                clients.append(client)
        yield clients
    finally:
        for client in clients:
            client.close()


def head(path: str, headers: str = "") -> bytes:
    """The head of a POST, without its last empty line."""
    kind = "Content-Type: application/json\r\n"
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{kind}{headers}".encode()


def post(path: str, body: object) -> bytes:
    """A request with a body: of JSON text, or to be made so."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(path, f"Content-Length: {len(data)}\r\n\r\n") + data


def status(client: socket.socket) -> str:
    """The status of the next reply, or what happened instead."""
    try:
        return client.recv(65536)[9:12].decode() or "closed"
    except OSError as error:
        return type(error).__name__


def ask(port: int, request: bytes) -> str:
    """The status of a request's reply, which is read to its end."""
    try:
        with connect(port) as client:
            client.sendall(request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            found = status(client)
            while client.recv(1 << 20):
                pass
            return found
    except OSError as error:
        return type(error).__name__


def get(port: int, path: str) -> Any:
    """The body of the reply, parsed if it is JSON."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=_TIMEOUT_S) as found:
        text = found.read().decode()
        return json.loads(text) if "json" in found.headers["content-type"] else text


def reply(port: int, path: str, body: object) -> Any:
    """The JSON of the reply, of an error too."""
    url, headers = f"http://127.0.0.1:{port}{path}", {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as found:
            return json.load(found)
    except urllib.error.HTTPError as error:
        return json.load(error)


def crowd(count: int, visit: Callable[[int], Any]) -> Counter[Any]:
    """Results of `count` visitors, all at once."""
    with ThreadPoolExecutor(count) as pool:
        return Counter(pool.map(visit, range(count)))


def during(seconds: float, work: Callable[[], Any], pause_s: float = 0.0) -> Counter[Any]:
    """Results of `work`, repeated for so many seconds."""
    found, end = Counter[Any](), time.monotonic() + seconds
    while time.monotonic() < end:
        found[work()] += 1
        time.sleep(pause_s)
    return found
