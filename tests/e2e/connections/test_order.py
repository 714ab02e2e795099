"""Requests that are sent before the reply to the last one, and clients that end their side."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from running_server import RunningServer

from .raw_http import (
    LONG,
    VERSION,
    Replies,
    ask,
    chunked_head,
    connect,
    num_finished,
    post,
)


def test_requests_sent_ahead_are_answered_in_order(server: RunningServer) -> None:
    prompts = ["x" * length for length in range(1, 501)]
    with connect(server) as client, ThreadPoolExecutor(1) as pool:
        data = b"".join(post({"prompt": prompt}, "/tokenize") for prompt in prompts)
        pool.submit(client.sendall, data + b"NONSENSE\r\n\r\n" + VERSION)
        replies = Replies(client)
        counts = [replies.next().json()["count"] for _ in prompts]
        assert counts == [ask(server, post({"prompt": p}, "/tokenize")).json()["count"]
                          for p in prompts[:3]] + counts[3:]  # fmt: skip
        assert counts == sorted(counts)
        assert counts[-1] > counts[0]
        last = replies.next()
        assert (last.status, last.headers["connection"]) == (400, "close")
        assert replies.rest() == b""


def test_a_quick_request_waits_for_a_slow_one(server: RunningServer) -> None:
    slow = post({**LONG, "max_tokens": 200})
    streamed = post({**LONG, "max_tokens": 100, "stream": True})
    with connect(server) as client:
        client.sendall(slow + VERSION + streamed + VERSION + b"\0")
        replies = Replies(client)
        assert replies.next().json()["usage"]["completion_tokens"] == 200
        assert "version" in replies.next().json()
        assert replies.next().body.endswith(b"data: [DONE]\n\n")
        assert "version" in replies.next().json()
        assert replies.next().status == 400


def test_a_refused_body_does_not_hide_what_came_before(server: RunningServer) -> None:
    with connect(server) as client:
        client.sendall(post(LONG) + VERSION + chunked_head() + b"zz\r\n")
        replies = Replies(client)
        assert [replies.next().status for _ in range(3)] == [200, 200, 400]


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_with_requests_sent_ahead_frees_them_all(
    server: RunningServer, stream: bool
) -> None:
    before = num_finished(server, "length")
    with connect(server) as client:
        request = post({**LONG, "max_tokens": 1900, "stream": stream})
        client.sendall(request * 3 + VERSION)
        server.until(lambda: server.live()["requests"]["running"] == 1)
    server.until_idle()
    assert num_finished(server, "length") == before


@pytest.mark.parametrize("max_tokens", [1, 400])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_ends_its_side_gets_its_replies(
    server: RunningServer, stream: bool, max_tokens: int
) -> None:
    body = {**LONG, "max_tokens": max_tokens}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    request = post(body)
    with connect(server) as client:
        client.sendall(VERSION + request + request)
        client.shutdown(socket.SHUT_WR)
        replies = Replies(client)
        assert "version" in replies.next().json()
        for _ in range(2):
            reply = replies.next()
            assert reply.status == 200
            text = reply.body
            if stream:
                *_, text, done = text.removesuffix(b"\n\n").split(b"\n\n")
                assert done == b"data: [DONE]"
            usage = json.loads(text.removeprefix(b"data: "))["usage"]
            assert usage["completion_tokens"] == max_tokens
        assert reply.headers["connection"] == "close"
        assert replies.rest() == b""


def test_a_request_that_ends_too_early_is_told_so(server: RunningServer) -> None:
    with connect(server) as client:
        client.sendall(VERSION + post({"prompt": "a"}, "/tokenize")[:-3])
        client.shutdown(socket.SHUT_WR)
        replies = Replies(client)
        assert [replies.next().status for _ in range(2)] == [200, 400]
        assert replies.rest() == b""
