"""TLS, IPv6 and Unix sockets, and who has an address."""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from ports import free_ports
from running_server import StartServer

from .conftest import KEY
from .raw_http import (
    HOST,
    LONG,
    VERSION,
    Replies,
    ask,
    chunked_head,
    connect,
    is_healthy,
    many,
    num_files,
    num_finished,
    post,
)


def is_answered(client: httpx.Client, path: str) -> bool:
    try:
        return client.get(path).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.long
def test_handshakes_that_never_end_lock_nobody_out(
    start_server: StartServer, certificate: Path
) -> None:
    tls = {"ssl_keyfile": certificate, "ssl_certfile": certificate}
    bounds = {"max_connections": 10, "reserved_connections": 20, "header_timeout": 1.0}
    server = start_server(**bounds, **tls)
    with many(server, 200), server.client(verify=False) as client:
        server.until(lambda: num_files(server) < 100)
        assert client.get("/health").status_code == 200
        # Until header_timeout has ended the handshakes, they take all other connections.
        server.until(lambda: is_answered(client, "/version"))


@pytest.mark.long
def test_tls_is_bounded_alike(start_server: StartServer, certificate: Path) -> None:
    tls = {"ssl_keyfile": certificate, "ssl_certfile": certificate}
    server = start_server(api_key=[KEY], header_timeout=1.0, linger_timeout=0.5, **tls)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for data, status in {
        chunked_head() + b"1\r\na\r\n" * 1000: 401,
        chunked_head(headers=b"Authorization: Bearer secret\r\n") + b"0\r\n"
        + b"A: b\r\n" * 7000: 431,
        b"GET /version HTTP/1.1\r\n": 408,
        VERSION: 200,
    }.items():  # fmt: skip
        with context.wrap_socket(connect(server)) as client:
            client.sendall(data)
            replies = Replies(client)
            assert replies.next().status == status
            with suppress(ConnectionError, ssl.SSLError):
                replies.rest()
    with server.client(verify=False) as client:
        assert client.get("/health").status_code == 200


@pytest.mark.sweep(1)
@pytest.mark.parametrize("where", ["ipv6", "unix"])
def test_other_sockets_are_served_alike(
    start_server: StartServer, tmp_path: Path, where: str
) -> None:
    options = {"host": "::1"} if where == "ipv6" else {"uds": tmp_path / "socket"}
    server = start_server(linger_timeout=0.5, **options)
    with connect(server) as client:
        client.sendall(post(LONG) + VERSION)
        client.shutdown(socket.SHUT_WR)
        replies = Replies(client)
        assert [replies.next().status for _ in range(2)] == [200, 200]
        assert replies.rest() == b""
    with connect(server) as client:
        client.sendall(chunked_head("/nothing") + b"1\r\na\r\n")
        replies = Replies(client)
        assert replies.next().status == 404
        assert replies.rest() == b""
    with connect(server) as client:
        client.sendall(post({**LONG, "max_tokens": 1900}))
    with connect(server) as client:
        load = b"GET /load HTTP/1.1\r\n" + HOST + b"\r\n"
        server.until(lambda: ask(server, load).json()["server_load"] == 0)
    assert num_finished(server, "length") == 1


def test_two_servers_do_not_share_a_port(start_server: StartServer) -> None:
    port = free_ports()
    servers = [start_server(wait=False, port=port) for _ in range(3)]
    deadline = time.monotonic() + 120
    while sum(one.process.poll() is None for one in servers) > 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    losers = [one for one in servers if one.process.poll() is not None]
    assert [one.wait() for one in losers] == [1, 1]
    for one in losers:
        assert f"cannot listen on 127.0.0.1:{port}" in one.lines[-1]
    (winner,) = (one for one in servers if one not in losers)
    assert is_healthy(winner.wait_until_serving())


def test_two_servers_do_not_share_a_path(start_server: StartServer, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    first = start_server(uds=path)
    second = start_server(uds=path, wait=False)
    assert second.wait() == 1
    assert "another server is listening" in second.lines[-1]
    assert is_healthy(first)
    path.unlink()
    third = start_server(uds=path)
    first.process.terminate()
    assert first.wait() == 0
    assert is_healthy(third)  # its file is still there
    third.process.terminate()
    assert third.wait() == 0
    assert not path.exists()
