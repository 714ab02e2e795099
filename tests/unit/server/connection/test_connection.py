"""One connection over a fake transport: order, patience, and what is left behind."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from polling import soon
from quick_loop import run_quickly

from quire.server.connection.connection import HttpConnection

from .conftest import Line, echo

run_test = run_quickly

GET = b"GET /%d HTTP/1.1\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"


async def refuse(_: Any, __: Any, send: Any) -> None:
    """Answers without a look at the body."""
    headers = [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body"})


async def hang(_: Any, receive: Any, __: Any) -> None:
    """Answers never."""
    while (await receive())["type"] != "http.disconnect":
        pass


@pytest.mark.parametrize("step", [1, 3, 65536])
async def test_requests_are_answered_in_order_whatever_follows(step: int) -> None:
    line = Line(echo)
    line.feed(b"".join(GET % i for i in range(300)) + POST + b"\0", step)
    await soon(lambda: "write_eof" in line.transport.calls)
    assert line.statuses() == [200] * 301 + [400]
    bodies = [part.rpartition(b"\r\n")[2] for part in line.transport.sent.split(b":HTTP")]
    assert bodies[:300] == [b"/%d" % i for i in range(300)]


async def test_bytes_sent_ahead_are_held_up() -> None:
    line = Line(hang)
    line.feed(POST)
    await asyncio.sleep(0)
    line.feed(b"x" * 40_000)
    assert line.transport.calls == ["pause"]
    assert line.transport.sent == b""


async def test_a_body_is_held_up_until_it_is_wanted() -> None:
    is_wanted = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await is_wanted.wait()
        await echo(scope, receive, send)

    line = Line(app)
    line.feed(b"POST / HTTP/1.1\r\nContent-Length: 300000\r\n\r\n")
    fed = 0
    while "pause" not in line.transport.calls:
        line.feed(b"x" * 10_000)
        fed += 10_000
        await asyncio.sleep(0.002)
    assert 64_000 < fed < 150_000
    is_wanted.set()
    await soon(lambda: "resume" in line.transport.calls)
    for _ in range(fed, 300_000, 10_000):
        line.feed(b"x" * 10_000)
        await asyncio.sleep(0)
    await soon(lambda: line.transport.sent.endswith(b"x" * 300_000))


async def test_an_unread_body_is_thrown_away_for_a_while() -> None:
    line = Line(refuse, max_body_bytes=100_000, linger_timeout=0.1)
    line.feed(b"POST / HTTP/1.1\r\nContent-Length: 999999\r\n\r\na")
    await soon(lambda: "write_eof" in line.transport.calls)
    assert b"connection: close" in line.transport.sent
    line.feed(b"x" * 90_000)
    assert "abort" not in line.transport.calls
    await soon(lambda: line.transport.calls[-1] == "close")  # time is up

    line = Line(refuse, max_body_bytes=100_000)
    line.feed(b"POST / HTTP/1.1\r\nContent-Length: 999999\r\n\r\na")
    await soon(lambda: "write_eof" in line.transport.calls)
    line.feed(b"x" * 110_000)  # too much
    assert line.transport.calls[-1] == "abort"


async def test_the_body_of_a_reply_that_has_begun_may_not_fail() -> None:
    """A stream that began before its request was complete, and a request that never is."""

    async def stream(_: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        assert (await receive())["type"] == "http.disconnect"

    line = Line(stream, body_timeout=0.1)
    line.feed(b"GET / HTTP/1.1\r\nContent-Length: 9\r\n\r\na")
    await soon(lambda: line.transport.is_closing())
    await soon(lambda: not line.state.tasks)
    assert line.statuses() == [200]


@pytest.mark.parametrize("is_ending", [False, True])
async def test_a_client_that_reads_nothing_is_cut_off(is_ending: bool) -> None:
    line = Line(echo, slow_reader_timeout=0.15, keep_alive_timeout=0.1)
    line.transport.is_stuck = True
    line.feed(GET % 1)
    await soon(lambda: line.statuses() == [200])
    if not is_ending:
        line.connection.pause_writing()
    await soon(lambda: line.transport.calls[-1:] == ["abort"])


async def test_a_client_that_reads_slowly_is_not() -> None:
    line = Line(hang, slow_reader_timeout=0.8)
    line.transport.num_stuck = 10**6
    line.connection.pause_writing()
    for _ in range(8):
        await asyncio.sleep(0.2)
        line.transport.num_stuck -= 60_000
    assert line.transport.calls == []
    line.connection.resume_writing()
    await asyncio.sleep(0.3)
    assert line.transport.calls == []


async def test_a_reply_waits_while_its_client_does_not_read() -> None:
    line = Line(echo)
    line.connection.pause_writing()
    line.feed(GET % 1)
    await asyncio.sleep(0.02)
    assert line.transport.sent == b""
    line.connection.resume_writing()
    await soon(lambda: line.statuses() == [200])


async def test_a_lost_client_is_told_to_all_that_it_asked_for() -> None:
    line = Line(hang)
    line.feed(POST + GET % 1 + POST)
    await asyncio.sleep(0.01)
    assert len(line.state.tasks) == 1
    line.connection.connection_lost(None)
    await soon(lambda: not line.state.tasks)
    assert not line.state.connections


async def test_an_application_that_fails_is_answered_for() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
        if scope["path"] == "/late":
            await send({"type": "http.response.start", "status": 200})
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
        raise ZeroDivisionError

    line = Line(app)
    line.feed(b"GET / HTTP/1.1\r\n\r\n")
    await soon(lambda: line.statuses() == [500])
    line = Line(app)
    line.feed(b"GET /late HTTP/1.1\r\n\r\n")
    await soon(lambda: line.transport.is_closing())
    assert not line.transport.sent.endswith(b"0\r\n\r\n")  # the client sees that it is cut


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET /",
        GET % 1,
        POST + b"\0",
        POST[:-1],
        b"POST / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    ],
)
def test_a_lost_connection_is_freed_at_once(data: bytes) -> None:
    """Not by the garbage collector, which may come late."""

    async def scenario() -> None:
        line = Line(echo)
        line.feed(data)
        await asyncio.sleep(0.02)
        line.connection.connection_lost(None)
        await asyncio.sleep(0.02)
        del line

    gc.collect()
    gc.disable()
    try:
        run_quickly(scenario())
        assert not [one for one in gc.get_objects() if type(one) is HttpConnection]
    finally:
        gc.enable()


async def test_a_server_that_ends_answers_what_is_under_way() -> None:
    line = Line(echo)
    line.feed(GET % 1 + GET % 2)
    line.connection.shutdown()
    await soon(lambda: "write_eof" in line.transport.calls)
    assert line.statuses() == [200, 200]
    idle = Line(echo)
    idle.connection.shutdown()
    assert idle.transport.calls == ["close"]


async def test_reserved_connections_are_for_probes() -> None:
    line = Line(echo)
    assert line.statuses() == []


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()], ids=repr)
async def test_whatever_the_application_raises_ends_its_own_request_alone(
    error: BaseException,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/bad":
            raise error
        await echo(scope, receive, send)

    bad, good = Line(app), Line(app)
    bad.feed(b"GET /bad HTTP/1.1\r\nhost: a\r\n\r\n")
    good.feed(b"GET /good HTTP/1.1\r\nhost: a\r\n\r\n")
    await soon(lambda: bad.statuses() and good.statuses())
    assert (bad.statuses(), good.statuses()) == ([500], [200])


async def _stopped(seconds: float) -> None:
    """The process does not run for so long; then its timers are looked at before its sockets."""
    asyncio.get_running_loop()._timers.now += seconds  # type: ignore[attr-defined]
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.parametrize("before", [b"", GET % 1 + b"GET /2", POST[:-2], GET % 1])
async def test_what_came_while_the_server_was_stopped_is_not_late(before: bytes) -> None:
    line = Line(echo, header_timeout=0.5, body_timeout=0.5, keep_alive_timeout=0.5)
    line.feed(before)
    await asyncio.sleep(0.1)
    await _stopped(20)
    assert line.transport.calls == []
    line.feed((GET % 1 + GET % 2 + POST)[len(before) :] if before != POST[:-2] else POST[-2:])
    num_requests = 1 if before == POST[:-2] else 3
    await soon(lambda: line.statuses() == [200] * num_requests)
    late = Line(echo, header_timeout=0.5)
    late.feed(b"GET /")
    await _stopped(20)
    await soon(lambda: late.statuses() == [408])


async def test_a_client_that_could_not_read_from_a_stopped_server_is_not_cut_off() -> None:
    line = Line(hang, slow_reader_timeout=0.8, header_timeout=100)
    line.transport.num_stuck = 10**6
    line.connection.pause_writing()
    await asyncio.sleep(0.1)
    await _stopped(20)
    line.transport.num_stuck -= 60_000
    await asyncio.sleep(1.5)
    assert line.transport.calls == []
    await soon(lambda: line.transport.calls[-1:] == ["abort"])
