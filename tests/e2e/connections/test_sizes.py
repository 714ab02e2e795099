"""All that a client sends is bounded, whatever part of a request it is."""

from __future__ import annotations

import json
import socket
import time

import pytest
from running_server import RunningServer, StartServer

from .conftest import KEY
from .raw_http import (
    VERSION,
    Replies,
    ask,
    chunked_head,
    chunks,
    connect,
    is_healthy,
    many,
    post,
    resident_mib,
)


def send_until_cut(client: socket.socket, unit: bytes, max_bytes: int) -> int:
    """Sends again and again until the server ends the connection; the bytes that it took."""
    num_sent = 0
    try:
        while num_sent < max_bytes:
            client.sendall(unit)
            num_sent += len(unit)
    except OSError:
        pass
    return num_sent


ENDLESS = {
    "url": (b"GET /", b"a" * 4096, 414),
    "header value": (b"GET / HTTP/1.1\r\nA: ", b"a" * 4096, 431),
    "header name": (b"GET / HTTP/1.1\r\nA", b"a" * 4096, 431),
    "headers": (b"GET / HTTP/1.1\r\n", b"A: b\r\n" * 500, 431),
    "empty lines": (b"", b"\r\n" * 2048, 431),
    "trailers": (chunked_head() + b"0\r\n", b"A: b\r\n" * 500, 431),
    "trailer value": (chunked_head() + b"0\r\nA: ", b"a" * 4096, 431),
    "trailer name": (chunked_head() + b"0\r\nA", b"a" * 4096, 431),
    "chunk extension": (chunked_head() + b"1;", b"a" * 4096, 431),
    "chunk extensions": (chunked_head(), (b"1;" + b"a" * 50 + b"\r\nb\r\n") * 70, 431),
    "zeros of a chunk's length": (chunked_head(), b"0" * 4096, 431),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_all_that_is_not_a_body_is_bounded(server: RunningServer, name: str) -> None:
    first, unit, status = ENDLESS[name]
    before = resident_mib(server)
    with connect(server) as client:
        client.sendall(first)
        # The reply comes after 32 KiB. Then the client may go on for 16 MiB, which are not kept.
        num_sent = send_until_cut(client, unit, 64 << 20)
        assert num_sent < 64 << 20
    with connect(server) as client:
        client.sendall(first + unit * 20)
        assert Replies(client).next().status == status
    assert resident_mib(server) < before + 8
    assert is_healthy(server)


def test_trailers_are_not_headers(guarded: RunningServer) -> None:
    with connect(guarded) as client:
        trailers = b"Authorization: Bearer %s\r\nHost: elsewhere\r\n" % KEY.encode()
        data = json.dumps({"prompt": "a"}).encode()
        client.sendall(chunked_head() + chunks(data, 100)[:-2] + trailers + b"\r\n" + VERSION)
        replies = Replies(client)
        assert [replies.next().status for _ in range(2)] == [401, 200]


@pytest.mark.parametrize("size", [1, 3, 17, 4096])
def test_a_body_may_come_in_chunks_of_any_size(server: RunningServer, size: int) -> None:
    data = json.dumps({"prompt": "x" * 30_000}).encode()
    reply = ask(server, chunked_head() + chunks(data, size))
    assert reply.status == 200
    assert reply.json()["count"] > 10_000


def test_all_bodies_that_arrive_are_bounded_together(start_server: StartServer) -> None:
    server = start_server(max_pending_body_bytes=1 << 20)
    head = chunked_head()
    with many(server, 4, head + b"40000\r\n" + b" " * 0x40000 + b"\r\n") as clients:
        time.sleep(0.5)
        for client in clients:
            client.sendall(b"40000\r\n" + b" " * 0x40000 + b"\r\n")
        statuses = []
        for client in clients:
            client.settimeout(1)
            try:
                statuses.append(Replies(client).next().status)
            except TimeoutError:
                client.sendall(b"2\r\n{}\r\n0\r\n\r\n")
                client.settimeout(20)
                statuses.append(Replies(client).next().status)
        assert 503 in statuses
        assert statuses.count(400) >= 1  # those that fit are read: {} is no good request
    body = {"prompt": "x" * 500_000}
    assert ask(server, post(body, "/tokenize")).status in (200, 400)
