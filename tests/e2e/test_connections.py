"""Clients that keep to no rule of HTTP, and those that keep to its rarer ones.

None of them makes the server hold more, wait longer or answer in another order than it says, and
health and readiness answer all the while.
"""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from .conftest import RunningServer, StartServer, engine_options
from .raw_http import (
    HEALTH,
    HOST,
    VERSION,
    Replies,
    ask,
    chunked_head,
    chunks,
    connect,
    many,
    post,
    resident_mib,
)

KEY = "secret"
LONG = {"prompt": "abc", "max_tokens": 400, "ignore_eos": True, "temperature": 1.0}


@pytest.fixture(scope="module")
def guarded(tiny_model: Path) -> Iterator[RunningServer]:
    """A server with a key and little patience."""
    running = RunningServer(
        engine_options(tiny_model),
        {
            "port": 0, "api_key": [KEY], "max_connections": 20, "reserved_connections": 4,
            "header_timeout": 1.0, "body_timeout": 1.0, "keep_alive_timeout": 1.0,
            "linger_timeout": 0.5,
        },
    )  # fmt: skip
    yield running.wait_until_serving()
    running.stop()


def is_healthy(server: RunningServer) -> bool:
    return ask(server, HEALTH).status == 200


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


# --- what is not a body

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


# --- bodies that nobody reads

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
            while time.monotonic() < begin + 5:  # and dropped when the client goes on
                client.sendall(b"1\r\na\r\n")
                time.sleep(0.05)
            pytest.fail("the connection lives on")
        except OSError:
            assert time.monotonic() - begin < 2


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
        end = time.monotonic() + 3
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
    body = {"prompt": "a", "max_tokens": 1}
    assert ask(guarded, post(body, headers=b"Authorization: Bearer secret\r\n")).status == 200


# --- time

SLOW = {
    "no request": (b"", b"", 408),
    "empty lines": (b"\r\n", b"\r\n", 408),
    "head": (b"GET /version HTTP/1.1\r\n", b"A: b\r\n", 408),
    "body": (
        chunked_head(headers=b"Authorization: Bearer secret\r\n"), b"1\r\n \r\n", 408,
    ),
    "trailers": (
        chunked_head(headers=b"Authorization: Bearer secret\r\n") + b"0\r\n", b"A: b\r\n", 408,
    ),
    "second head": (VERSION + b"GET /version HTTP/1.1\r\n", b"A: b\r\n", 200),
}  # fmt: skip


@pytest.mark.parametrize("name", SLOW)
def test_every_part_of_a_request_must_come_in_time(guarded: RunningServer, name: str) -> None:
    first, unit, status = SLOW[name]
    with connect(guarded) as client:
        client.sendall(first)
        client.settimeout(0.1)
        data, begin = b"", time.monotonic()
        while time.monotonic() < begin + 6:
            try:
                piece = client.recv(65536)
            except TimeoutError:
                client.sendall(unit)
                continue
            except OSError:
                break
            data += piece
            if not piece:
                break
        assert time.monotonic() - begin < 4
        assert data.split(b" ", 2)[1] == b"%d" % status
        if name == "second head":
            assert b" 408 " in data


def test_an_idle_connection_is_closed(guarded: RunningServer) -> None:
    with connect(guarded) as client:
        client.sendall(VERSION)
        replies = Replies(client)
        assert replies.next().status == 200
        begin = time.monotonic()
        assert replies.rest() == b""
        assert 0.5 < time.monotonic() - begin < 3


def test_a_reply_that_nobody_reads_holds_no_connection(start_server: StartServer) -> None:
    server = start_server(slow_reader_timeout=0.5, keep_alive_timeout=0.5)
    request = b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n"
    with connect(server) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(300):
            client.sendall(request * 3)
        server.until(lambda: "cut off" in server.log(), timeout_s=20)
    assert is_healthy(server)


# --- number


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
    with many(server, 40, first):
        time.sleep(1.2)
        for _ in range(20):
            assert ask(server, VERSION).status == 200
            assert is_healthy(server)


def test_a_crowd_of_idle_connections_is_bounded(start_server: StartServer) -> None:
    server = start_server(max_connections=100, reserved_connections=20)
    before = resident_mib(server)
    with many(server, 1000):
        time.sleep(0.2)  # the last of the crowd are being turned away
        for _ in range(20):
            assert is_healthy(server)
        assert 100 <= _num_files(server) < 200
        assert resident_mib(server) < before + 8


def _num_files(server: RunningServer) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


# --- order


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
    with connect(server) as client:
        request = post({**LONG, "max_tokens": 1900, "stream": stream})
        client.sendall(request * 3 + VERSION)
        server.until(lambda: server.live()["requests"]["running"] == 1)
    begin = time.monotonic()
    server.until_idle()
    assert time.monotonic() - begin < 2


# --- clients that say that they are done


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


# --- rarer parts of HTTP

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


# --- where it listens


def test_a_rush_leaves_health_to_those_who_ask(start_server: StartServer) -> None:
    """Clients that connect and connect, and never send anything."""
    server = start_server(max_connections=10)
    with ThreadPoolExecutor(1) as pool:
        rush = pool.submit(_rush, server, 2.0)
        statuses = []
        while not rush.done():
            with connect(server) as client:
                client.sendall(HEALTH)
                data = client.recv(65536)
            statuses.append(data[9:12])
            time.sleep(0.02)
    assert len(statuses) > 10
    assert statuses.count(b"200") > 0.9 * len(statuses)


def _rush(server: RunningServer, seconds: float) -> None:
    end, clients = time.monotonic() + seconds, []
    while time.monotonic() < end:
        clients.append(connect(server))
        if len(clients) > 200:
            clients.pop(0).close()
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
               "-subj", "/CN=localhost", "-keyout", path, "-out", f"{path}.crt"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


def test_handshakes_that_never_end_lock_nobody_out(
    start_server: StartServer, certificate: Path
) -> None:
    tls = {"ssl_keyfile": certificate, "ssl_certfile": certificate}
    bounds = {"max_connections": 10, "reserved_connections": 20, "header_timeout": 1.0}
    server = start_server(**bounds, **tls)
    with many(server, 200), server.client(verify=False) as client:
        time.sleep(0.2)
        assert _num_files(server) < 100
        assert client.get("/health").status_code == 200
        time.sleep(1.2)
        assert client.get("/version").status_code == 200


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
            begin = time.monotonic()
            with suppress(OSError):
                replies.rest()
            assert time.monotonic() - begin < 7
    with server.client(verify=False) as client:
        assert client.get("/health").status_code == 200


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
        server.until(lambda: ask(server, load).json()["server_load"] == 0, timeout_s=2)


def test_two_servers_do_not_share_a_port(start_server: StartServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    servers = [start_server(wait=False, port=port) for _ in range(3)]
    deadline = time.monotonic() + 30
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
