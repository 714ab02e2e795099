"""Bodies that nobody reads, because the reply is known before them."""

from __future__ import annotations

import time

import pytest
from running_server import RunningServer

from .raw_http import (
    HOST,
    Replies,
    ask,
    chunked_head,
    connect,
    many,
    post,
)

UNREAD = {
    401: b"POST /v1/completions HTTP/1.1\r\n" + HOST,
    404: b"POST /nothing HTTP/1.1\r\n" + HOST + b"Authorization: Bearer secret\r\n",
    405: b"POST /version HTTP/1.1\r\n" + HOST + b"Authorization: Bearer secret\r\n",
    413: b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Authorization: Bearer secret\r\n"
    b"Content-Length: 999999999\r\n",
    415: b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Authorization: Bearer secret\r\n"
    b"Content-Type: text/plain\r\n",
    200: b"GET /health HTTP/1.1\r\n" + HOST,
}


@pytest.mark.parametrize("status", UNREAD)
@pytest.mark.parametrize("framing", [b"Content-Length: 1000000\r\n\r\n", None])
def test_a_connection_ends_with_a_reply_to_an_unread_body(
    guarded: RunningServer, status: int, framing: bytes | None
) -> None:
    head = UNREAD[status]
    if framing is None or status == 413:
        framing = b"\r\n" if status == 413 else b"Transfer-Encoding: chunked\r\n\r\n"
    with connect(guarded) as client:
        client.sendall(head + framing + b"1\r\na\r\n")
        replies = Replies(client)
        reply = replies.next()
        assert (reply.status, reply.headers["connection"]) == (status, "close")
        begin = time.monotonic()
        assert replies.rest() == b""  # it is ended at once
        try:
            while time.monotonic() < begin + 30:  # and dropped when the client goes on
                client.sendall(b"1\r\na\r\n")
                time.sleep(0.05)
        except OSError:
            return
        pytest.fail("the connection lives on")


def test_a_client_that_sends_all_first_reads_the_reply(guarded: RunningServer) -> None:
    with connect(guarded) as client:
        head = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: 8000000\r\n\r\n"
        client.sendall(head)
        for _ in range(80):
            client.sendall(b"x" * 100_000)
        replies = Replies(client)
        assert replies.next().status == 401
        assert replies.rest() == b""


def test_drippers_without_a_key_lock_nobody_out(guarded: RunningServer) -> None:
    with many(guarded, 60, chunked_head("/v1/completions")) as clients:
        end = time.monotonic() + 1.5  # longer than linger_timeout and body_timeout
        while time.monotonic() < end:
            for client in clients:
                try:
                    client.sendall(b"1\r\na\r\n")
                except OSError:
                    continue
            for path in (b"/health", b"/ready", b"/live"):
                request = b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
                assert ask(guarded, request).status == 200
            time.sleep(0.1)
    request = post({"prompt": "a", "max_tokens": 1}, headers=b"Authorization: Bearer secret\r\n")
    guarded.until(lambda: ask(guarded, request).status == 200)
