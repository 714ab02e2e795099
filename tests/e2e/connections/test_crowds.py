"""So many connections are open at once, and no more; health and readiness have their own."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from running_server import RunningServer, StartServer

from .raw_http import (
    HEALTH,
    HOST,
    LONG,
    VERSION,
    ask,
    connect,
    is_healthy,
    many,
    num_files,
    post,
    resident_mib,
)

pytestmark = pytest.mark.long
"""Crowds of connections take a minute."""


def test_connections_in_use_leave_health_and_readiness(start_server: StartServer) -> None:
    server = start_server(max_connections=4, engine={"max_num_seqs": 8})
    long = post({**LONG, "max_tokens": 1900, "stream": True})
    with many(server, 4, long) as clients:
        for client in clients:
            assert client.recv(15) == b"HTTP/1.1 200 OK"
        for path in (b"/health", b"/ready", b"/live"):
            request = b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n"
            assert ask(server, request).status == 200
        refused = ask(server, VERSION)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["code"] == 503
        assert ask(server, b"POST /health HTTP/1.1\r\n" + HOST + b"\r\n").status == 503
    server.until(lambda: ask(server, VERSION).status == 200)


@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\nA:", VERSION])
def test_connections_without_a_request_make_room(start_server: StartServer, first: bytes) -> None:
    server = start_server(max_connections=4, reserved_connections=2, keep_alive_timeout=60.0)
    with many(server, 40, first) as clients:
        for client in clients if first == VERSION else []:
            with suppress(ConnectionError):
                client.recv(65536)  # the reply; its connection is idle from now on
        # They are closed for others once they have been idle for a second.
        server.until(lambda: ask(server, VERSION).status == 200)
        for _ in range(20):
            # A busy server may see the end of the last connection after the next one.
            server.until(lambda: ask(server, VERSION).status == 200)
            assert is_healthy(server)


def test_a_crowd_of_idle_connections_costs_little(start_server: StartServer) -> None:
    bounds = {"max_connections": 100, "reserved_connections": 20, "header_timeout": 5.0}
    server = start_server(**bounds)
    before = resident_mib(server)
    with many(server, 1000):
        server.until(lambda: num_files(server) >= 1000)
        for _ in range(20):
            assert is_healthy(server)
        assert resident_mib(server) < before + 8
        server.until(lambda: num_files(server) < 200)


_CLOSE = b"Connection: close\r\n"


async def ask_at_once(
    server: RunningServer, count: int, tls: ssl.SSLContext | None, pause_s: float
) -> Counter[Any]:
    """The statuses of so many clients, each of which connects and sends a request after a pause."""
    address, request = urlsplit(server.url), post({**LONG, "max_tokens": 20}, headers=_CLOSE)

    async def visit() -> str:
        try:
            reader, writer = await asyncio.open_connection(
                address.hostname, address.port, ssl=tls, ssl_handshake_timeout=60 if tls else None
            )
            await asyncio.sleep(pause_s)
            writer.write(request)
            reply = await reader.read()
            writer.close()
        except OSError as error:
            return type(error).__name__
        return reply[9:12].decode() or "closed"

    return Counter(await asyncio.gather(*(visit() for _ in range(count))))


@pytest.mark.parametrize("kind", ["plain", "late", "TLS", "late TLS"])
def test_all_of_a_crowd_get_a_reply(
    start_server: StartServer, certificate: Path, kind: str
) -> None:
    is_tls = "TLS" in kind
    pause_s = {"late": 1.5, "late TLS": 3.0}.get(kind, 0.0)
    tls = {"ssl_keyfile": certificate, "ssl_certfile": certificate} if is_tls else {}
    most, crowd = (10, 25) if is_tls else (40, 400)
    server = start_server(max_connections=most, reserved_connections=5, **tls)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    before = num_files(server)
    statuses = asyncio.run(ask_at_once(server, crowd, context if is_tls else None, pause_s))
    assert {*statuses} == {"200", "503"}, statuses
    assert statuses["200"] >= most
    server.until(lambda: num_files(server) <= before + 2)


_RUSH = """
import socket, sys
clients = []
while True:
    clients.append(socket.create_connection((sys.argv[1], int(sys.argv[2]))))
    if len(clients) > 200:
        clients.pop(0).close()
"""


def test_a_rush_leaves_health_to_those_who_ask(start_server: StartServer) -> None:
    """A program that connects and connects, and never sends anything."""
    server = start_server(max_connections=10)
    address = urlsplit(server.url)
    statuses = []
    rush = subprocess.Popen([sys.executable, "-c", _RUSH, str(address.hostname), str(address.port)])
    try:
        server.until(lambda: num_files(server) > 60)
        for _ in range(20):
            statuses.append(b"none")
            with suppress(OSError), connect(server) as client:  # it may be closed for another one
                client.sendall(HEALTH)
                statuses[-1] = client.recv(65536)[9:12]
            time.sleep(0.02)
    finally:
        rush.kill()
        rush.wait()
    assert statuses.count(b"200") > 0.8 * len(statuses), statuses
