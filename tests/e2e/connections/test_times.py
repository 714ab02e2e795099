"""Every part of a request has its time, and so has a reply."""

from __future__ import annotations

import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from running_server import RunningServer, StartServer

from .raw_http import (
    HOST,
    VERSION,
    Replies,
    chunked_head,
    connect,
    is_healthy,
)

SLOW = {
    "no request": (b"", b"", [b"408"]),
    "empty lines": (b"\r\n", b"\r\n", [b"408"]),
    "head": (b"GET /version HTTP/1.1\r\n", b"A: b\r\n", [b"408"]),
    "body": (
        chunked_head(headers=b"Authorization: Bearer secret\r\n"), b"1\r\n \r\n", [b"408"],
    ),
    "trailers": (
        chunked_head(headers=b"Authorization: Bearer secret\r\n") + b"0\r\n", b"A: b\r\n", [b"408"],
    ),
    "second head": (VERSION + b"GET /version HTTP/1.1\r\n", b"A: b\r\n", [b"200", b"408"]),
}  # fmt: skip


def drip(server: RunningServer, first: bytes, unit: bytes) -> bytes:
    """Sends a unit again and again; all replies until the server ends the connection."""
    with connect(server) as client:
        client.sendall(first)
        client.settimeout(0.1)
        data, end = b"", time.monotonic() + 30
        with suppress(ConnectionError):
            while time.monotonic() < end:
                try:
                    piece = client.recv(65536)
                except TimeoutError:
                    client.sendall(unit)
                    continue
                if not piece:
                    return data
                data += piece
            pytest.fail("the connection lives on")
        return data


def test_every_part_of_a_request_must_come_in_time(guarded: RunningServer) -> None:
    with ThreadPoolExecutor(len(SLOW)) as pool:
        found = {
            name: pool.submit(drip, guarded, first, unit) for name, (first, unit, _) in SLOW.items()
        }
    statuses = {name: re.findall(rb"HTTP/1.1 (\d+)", data.result()) for name, data in found.items()}
    assert statuses == {name: expected for name, (_, _, expected) in SLOW.items()}


def test_an_idle_connection_is_closed(guarded: RunningServer) -> None:
    with connect(guarded) as client:
        begin = time.monotonic()
        client.sendall(VERSION)
        replies = Replies(client)
        assert replies.next().status == 200
        assert replies.rest() == b""
        assert time.monotonic() - begin > 0.9


def test_a_reply_that_nobody_reads_holds_no_connection(start_server: StartServer) -> None:
    server = start_server(slow_reader_timeout=0.5, keep_alive_timeout=0.5)
    request = b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n"
    with connect(server) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(300):
            client.sendall(request * 3)
        server.until(lambda: "cut off" in server.log(), timeout_s=20)
    assert is_healthy(server)
