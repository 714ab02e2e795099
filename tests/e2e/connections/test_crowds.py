"""So many connections are open at once, and no more; health and readiness have their own."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
from running_server import StartServer

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


def test_a_crowd_of_idle_connections_is_bounded(start_server: StartServer) -> None:
    server = start_server(max_connections=100, reserved_connections=20)
    before = resident_mib(server)
    with many(server, 1000):
        server.until(lambda: 100 <= num_files(server) < 200)
        for _ in range(20):
            assert is_healthy(server)
        assert 100 <= num_files(server) < 200
        assert resident_mib(server) < before + 8


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
