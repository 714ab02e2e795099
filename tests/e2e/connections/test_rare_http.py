"""Rarer parts of HTTP."""

from __future__ import annotations

import json

import pytest
from running_server import RunningServer

from .raw_http import (
    HOST,
    LONG,
    Replies,
    ask,
    chunked_head,
    chunks,
    connect,
    post,
)

UPGRADES = {
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n",
    "websocket": b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n",
    "unknown": b"Upgrade: a/1, b\r\nConnection: upgrade\r\n",
}


@pytest.mark.parametrize("name", UPGRADES)
def test_upgrades_are_not_taken(server: RunningServer, name: str) -> None:
    headers, data = UPGRADES[name], json.dumps({"prompt": "a"}).encode()
    requests = [
        post({"prompt": "a"}, "/tokenize", headers),
        chunked_head(headers=headers) + chunks(data, 5),
        b"GET /version HTTP/1.1\r\n" + HOST + headers + b"\r\n",
    ]
    with connect(server) as client:
        replies = Replies(client)
        client.sendall(b"".join(requests) * 2)
        assert [replies.next().status for _ in range(6)] == [200] * 6
        for request in requests:  # however they are cut
            for i in range(0, len(request), 7):
                client.sendall(request[i : i + 7])
            assert replies.next().status == 200


@pytest.mark.parametrize("host", [b"localhost", b"evil.example"])
@pytest.mark.parametrize("path", [b"/v1/models/", b"/health/", b"//evil.example/"])
def test_nobody_is_sent_elsewhere(guarded: RunningServer, path: bytes, host: bytes) -> None:
    key = b"Authorization: Bearer secret\r\n"
    reply = ask(guarded, b"GET " + path + b" HTTP/1.1\r\nHost: " + host + b"\r\n" + key + b"\r\n")
    assert reply.status == 404
    assert "location" not in reply.headers


def test_expect_is_answered_when_the_body_is_wanted(guarded: RunningServer) -> None:
    data = json.dumps({"prompt": "a"}).encode()
    head = b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\n"
    head += b"Content-Length: %d\r\n" % len(data)
    with connect(guarded) as client:
        client.sendall(head + b"Authorization: Bearer secret\r\n\r\n")
        replies = Replies(client)
        assert replies.next().status == 100
        client.sendall(data)
        assert replies.next().status == 200
    with connect(guarded) as client:
        client.sendall(head + b"\r\n")
        reply = Replies(client).next()
        assert (reply.status, reply.headers["connection"]) == (401, "close")


@pytest.mark.parametrize("stream", [False, True])
def test_http_1_0_gets_what_it_understands(server: RunningServer, stream: bool) -> None:
    request = post({**LONG, "max_tokens": 5, "stream": stream}).replace(b"/1.1", b"/1.0", 1)
    reply = ask(server, request)
    assert "transfer-encoding" not in reply.headers
    assert reply.headers["connection"] == "close"
    if stream:
        assert reply.body.startswith(b"data: {")
        assert reply.body.endswith(b"data: [DONE]\n\n")


TARGETS = {
    b"GET http://localhost/version HTTP/1.1\r\nHost: evil.example\r\n\r\n": 200,
    b"GET http://evil.example/version HTTP/1.1\r\nHost: localhost\r\n\r\n": 403,
    b"GET http://localhost HTTP/1.1\r\nHost: localhost\r\n\r\n": 200,
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n": 404,
    b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n": 405,
    b"GET version HTTP/1.1\r\nHost: localhost\r\n\r\n": 400,
    b"GET /version HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n": 400,
    b"GET /version HTTP/1.1\r\nHost: a@localhost\r\n\r\n": 400,
    b"GET /version HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n"
    b"Origin: http://localhost\r\n\r\n": 403,
    b"GET /version HTTP/2.0\r\nHost: localhost\r\n\r\n": 505,
    b"GET /version\r\n\r\n": 505,
}


@pytest.mark.parametrize("request_", TARGETS)
def test_targets_and_hosts(server: RunningServer, request_: bytes) -> None:
    assert ask(server, request_).status == TARGETS[request_]
