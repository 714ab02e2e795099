"""Requests whose end two readers could see in different places."""

from __future__ import annotations

import json

import pytest
from running_server import RunningServer

from .raw_http import (
    HOST,
    VERSION,
    Replies,
    chunked_head,
    connect,
)

BODY = json.dumps({"prompt": "a"}).encode()
FRAMINGS = [
    b"Transfer-Encoding: chunked\r\nContent-Length: 5",
    b"Content-Length: 5\r\nTransfer-Encoding: chunked",
    b"Content-Length: 15\r\nContent-Length: 15", b"Content-Length: 15, 15", b"Content-Length: +15",
    b"Content-Length: -1", b"Content-Length: 0xf", b"Content-Length: 1 5", b"Content-Length: ",
    b"Content-Length: 99999999999999999999999", b"Content-Length : 15",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", b"Transfer-Encoding: identity",
    b"Transfer-Encoding: chunked, gzip", b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: xchunked", b"Transfer-Encoding: \x0bchunked",
    b"Transfer-Encoding:\r\n chunked", b"Transfer-Encoding : chunked", b"A: b\r\n c", b"A: a\x00b",
    b"A: a\rb", b"A: b\nContent-Length: 15", b" A: b", b": b", b"Abc",
    b"Connection: upgrade\r\nUpgrade: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3",
]  # fmt: skip
CHUNKINGS = [
    b"f\n" + BODY + b"\n0\n\n", b"f \r\n" + BODY, b"0xf\r\n" + BODY, b"-f\r\n" + BODY,
    b"+f\r\n" + BODY, b"1000000000000000f\r\n" + BODY, b"f\r\n" + BODY + b"0\r\n\r\n",
    b"f;a\rb\r\n" + BODY, b"f;a\nb\r\n" + BODY, b"f\r\n" + BODY + b"\r\n0\r\nno trailer\r\n\r\n",
    b"f\r\n" + BODY + b"\r\n0\r\nContent-Length: 5\r\n\r\n",
]  # fmt: skip


@pytest.mark.parametrize(
    "data",
    [b"POST /tokenize HTTP/1.1\r\n" + HOST + one + b"\r\n\r\n" + BODY for one in FRAMINGS]
    + [chunked_head() + one for one in CHUNKINGS],
)
def test_no_two_readers_can_see_different_requests(server: RunningServer, data: bytes) -> None:
    """Each is refused, and nothing after it is taken for a request."""
    for step in (len(data) + len(VERSION), 5):
        with connect(server) as client:
            sent = data + VERSION
            try:
                for i in range(0, len(sent), step):
                    client.sendall(sent[i : i + step])
            except OSError:
                continue  # it is closed already
            replies = Replies(client)
            assert replies.next().status in (400, 501)
            assert b" 200 OK" not in replies.rest()
