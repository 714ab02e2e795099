"""The parts of a connection, each by itself."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from quick_loop import run_quickly

from quire.server import ServerArgs
from quire.server.connection.exchange import Pipeline
from quire.server.connection.request_parser import FramingBudget, RequestHead, RequestParser
from quire.server.connection.sender import ReplyWriter
from quire.server.connection.shared_state import (
    ConnectionSlot,
    ConnectionSlots,
    Phase,
    PhaseTimer,
    WorkScheduler,
)
from quire.server.http.problems import HttpError, Problem

run_test = run_quickly

# --- budget


@pytest.mark.parametrize("size", [1, 15, 16, 255, 4096, 70_000])
def test_framing_that_cannot_be_shorter_costs_nothing(size: int) -> None:
    budget = FramingBudget(10)
    for _ in range(1000):
        budget.add_body(size)
        assert budget.charge(len(b"%x\r\n" % size) + size + 2)


def test_what_was_spared_cannot_be_spent() -> None:
    """A body in tiny pieces, of one long chunk, leaves no more room for trailers."""
    budget = FramingBudget(10)
    for _ in range(1000):
        budget.add_body(1)
        assert budget.charge(1)
    assert budget.charge(10)
    assert not budget.charge(1)
    budget.restart()
    assert budget.charge(10)


# --- parser


class Sink:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.heads: list[RequestHead] = []
        self.bodies: list[bytes] = []
        self.num_ended = 0

    def begin_request(self, head: RequestHead) -> None:
        self.heads.append(head)
        self.bodies.append(b"")

    def add_body(self, data: bytes) -> None:
        self.bodies[-1] += data

    def end_request(self) -> None:
        self.num_ended += 1


def parse(data: bytes, step: int = 10**6, **options: Any) -> Sink:
    sink = Sink()
    parser = RequestParser(sink, ServerArgs(**options))
    for i in range(0, len(data), step):
        parser.feed(data[i : i + step])
    return sink


@pytest.mark.parametrize("step", [1, 2, 7, 10**6])
def test_upgrades_are_read_over(step: int) -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    get = b"GET /a HTTP/1.1\r\n" + upgrade + b"X: y\r\n\r\n"
    post = b"POST /b HTTP/1.1\r\n" + upgrade + b"Content-Length: 3\r\n\r\nabc"
    chunked = b"PUT /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + upgrade
    chunked += b"\r\n3\r\nabc\r\n0\r\nX: z\r\n\r\n"
    sink = parse((get + post + chunked) * 3, step)
    assert sink.num_ended == 9
    assert sink.bodies == [b"", b"abc", b"abc"] * 3
    assert [(head.method, head.raw_path) for head in sink.heads[:3]] == [
        ("GET", b"/a"), ("POST", b"/b"), ("PUT", b"/c"),
    ]  # fmt: skip
    assert (b"x", b"y") in sink.heads[3].headers
    assert all((b"x", b"z") not in head.headers for head in sink.heads)
    assert all(head.keeps_alive for head in sink.heads)


@pytest.mark.parametrize("step", [1, 10**6])
@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + b"a" * 200 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 400 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 60 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
        (b"GET http://a/ HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (b"GET / HTTP/3.0\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"CONNECT a:1 HTTP/1.1\r\n\r\n", 405),
        (b"GET a HTTP/1.1\r\n\r\n", 400),
        (b"\0", 400),
    ],
)
def test_what_is_refused(data: bytes, status: int, step: int) -> None:
    with pytest.raises(HttpError) as error:
        parse(data, step, max_url_bytes=100, max_header_bytes=300)
    assert error.value.problem.status == status


def test_a_full_target_names_the_host() -> None:
    (head,) = parse(b"GET http://a:80?b HTTP/1.1\r\nHost: c\r\nX: y\r\n\r\n").heads
    assert head.headers == [(b"host", b"a:80"), (b"x", b"y")]
    assert (head.raw_path, head.query) == (b"/", b"b")
    scope = head.scope("/root")
    assert (scope["path"], scope["raw_path"], scope["root_path"]) == ("/root/", b"/root/", "/root")


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/v1/models", "/llm/v1/models"), ("/llm/v1/models", "/llm/v1/models"), ("/llm", "/llm/"),
        ("/llmx/v1", "/llm/llmx/v1"), ("/", "/llm/"), ("/llm/%61", "/llm/a"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("root_path", ["/llm", "/llm/"])
def test_a_proxy_may_leave_its_prefix_or_strip_it(target: str, path: str, root_path: str) -> None:
    (head,) = parse(b"GET %s HTTP/1.1\r\nHost: c\r\n\r\n" % target.encode()).heads
    scope = head.scope(root_path)
    assert (scope["path"], scope["root_path"]) == (path, "/llm")
    assert scope["raw_path"].startswith(b"/llm/")


# --- pipeline


def slot(is_reserved: bool) -> ConnectionSlot:
    slots = ConnectionSlots(1, 1)
    found = slots.acquire_reserved() if is_reserved else slots.acquire()
    assert found is not None
    return found


def test_what_is_no_request_is_told_after_all_that_is() -> None:
    def pipeline(data: bytes) -> Pipeline:
        found = Pipeline(slot(is_reserved=False))
        RequestParser(found, ServerArgs()).feed(data)
        return found

    problem = Problem(400, "")
    get, half = b"GET / HTTP/1.1\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n"
    first = pipeline(get)
    first.reject_rest(problem)
    assert first.first is not None
    assert first.refusal is problem
    second = pipeline(get + half)
    second.reject_rest(problem)  # the second has not begun to be answered: it is forgotten
    assert second.refusal is problem
    second.pop()
    assert second.first is None
    last = pipeline(get.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    last.reject_rest(problem)  # it was to be the last anyway
    assert last.refusal is None


@pytest.mark.parametrize(
    ("request_", "is_taken"),
    [(b"GET /health", True), (b"HEAD /ready", True), (b"POST /live", False), (b"GET /", False)],
)
def test_reserved_connections_are_for_probes(request_: bytes, is_taken: bool) -> None:
    parser = RequestParser(Pipeline(slot(is_reserved=True)), ServerArgs())
    data = request_ + b" HTTP/1.1\r\n\r\n"
    if is_taken:
        parser.feed(data)
        return
    with pytest.raises(HttpError) as error:
        parser.feed(data)
    assert error.value.problem.status == 503
    assert "Retry-After" in error.value.problem.headers


# --- reply


def write(method: str, version: str, status: int, parts: list[bytes], num_early: int) -> bytes:
    """A whole reply, with so many bytes sent ahead before each part."""
    writer = ReplyWriter(method, version)

    def early() -> bytes:
        return b"".join(writer.early_byte() for _ in range(num_early))

    sent = early() + writer.head(status, [(b"X", b"y")], True)
    for i, part in enumerate(parts):
        sent += early() + writer.body(part, i == len(parts) - 1)
    return sent


@pytest.mark.parametrize("num_early", [0, 1, 3, 50])
def test_bytes_sent_ahead_change_nothing(num_early: int) -> None:
    sent = write("GET", "1.1", 200, [b"a" * 20, b"", b"b"], num_early)
    head, _, body = sent.partition(b"\r\n\r\n")
    assert head == b"HTTP/1.1 200 OK\r\nx: y\r\ntransfer-encoding: chunked"
    text = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        assert len(size) < 16
        text += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    assert text == b"a" * 20 + b"b"


def test_bodies_are_framed_as_their_clients_understand() -> None:
    plain = write("GET", "1.0", 200, [b"a", b"b"], 3)
    assert plain.endswith(b"connection: close\r\n\r\nab")
    assert b"chunked" not in plain
    assert write("HEAD", "1.1", 200, [b"a"], 0).endswith(b"\r\n\r\n")
    assert b"chunked" not in write("GET", "1.1", 204, [b""], 0)


def test_a_reply_that_would_mislead_its_client_is_not_sent() -> None:
    with pytest.raises(ValueError, match="line break"):
        ReplyWriter("GET", "1.1").head(200, [(b"a", b"b\r\nc: d")], True)
    for sizes in ([3], [1], [1, 2], []):
        writer = ReplyWriter("GET", "1.1")
        writer.head(200, [(b"content-length", b"2")], True)
        with pytest.raises(ValueError, match="length"):  # noqa: PT012
            for size in sizes:
                writer.body(b"x" * size, False)
            writer.body(b"", True)


# --- connection slots


def test_the_longest_idle_connection_is_closed_for_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, ended = [100.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    slots = ConnectionSlots(3, 2, is_tls=True)

    def take(name: str, may_end: bool = True) -> Any:
        slot = slots.acquire() or slots.acquire_reserved()
        assert slot is not None
        slot.had_request = True  # as a client that is idle after it
        slot.evict = lambda: may_end and not ended.append(name)
        return slot

    first, second, third = take("first", may_end=False), take("second"), take("third")
    assert take("a").is_reserved  # nobody has waited long enough
    second.set_busy()
    now[0] += 5
    fourth = take("fourth")
    assert not fourth.is_reserved  # the first is being sent something
    assert ended == ["third"]
    third.release()  # it was told already
    now[0] += 0.5
    reserved = [take("b"), take("c")]
    assert slots.acquire_reserved() is None  # "b" has had no time for its request
    fourth.set_busy()
    now[0] += 2
    last = slots.acquire_reserved()
    assert last is not None
    reserved.append(last)
    assert all(slot.is_reserved for slot in reserved)
    assert ended == ["third", "a", "b"]
    for slot in reserved:
        slot.set_busy()
    assert (slots.acquire(), slots.acquire_reserved()) == (None, None)  # all are busy
    first.release()
    assert not take("fifth").is_reserved


def test_with_tls_a_client_without_a_request_keeps_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, ended = [100.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    slots = ConnectionSlots(2, 0, is_tls=True)
    taken: list[ConnectionSlot] = []

    def take(after_s: float) -> bool:
        now[0] += after_s
        made = slots.acquire()
        if made is not None:
            number = len(taken)
            made.evict = lambda: not ended.append(number)
            taken.append(made)
        return made is not None

    assert [take(1.5) for _ in range(6)] == [True] * 4 + [False] * 2  # the last two wait
    assert [one.is_reserved for one in taken] == [True] * 2 + [False] * 2
    taken[0].set_busy()  # its request is answered 503
    taken[0].release()
    assert take(1.5)
    assert not take(0)
    assert not ended
    assert take(5)  # the one that lost its slot first has had no request for long
    assert ended == [1]


# --- time


async def test_the_limit_of_the_current_phase_holds() -> None:
    """Whether it ends before or after the limit of the phase before."""

    late: list[Phase] = []
    args = ServerArgs(
        header_timeout=10, body_timeout=0.02, keep_alive_timeout=0.1, linger_timeout=0.02
    )
    slot = ConnectionSlots(1, 0).acquire()
    assert slot is not None
    timer = PhaseTimer(args, slot, late.append)
    timer.enter(Phase.HEAD)
    timer.enter(Phase.BODY)
    await asyncio.sleep(0.06)
    assert late == [Phase.BODY]
    timer.enter(Phase.LINGER)
    timer.enter(Phase.IDLE)
    await asyncio.sleep(0.06)
    assert late == [Phase.BODY]
    await asyncio.sleep(0.1)
    assert late == [Phase.BODY, Phase.IDLE]
    timer.enter(Phase.BODY)
    timer.enter(Phase.REPLY)
    await asyncio.sleep(0.05)
    timer.enter(Phase.BODY)
    timer.stop()
    await asyncio.sleep(0.05)
    assert late == [Phase.BODY, Phase.IDLE]


async def test_a_slot_is_idle_unless_a_request_is_answered() -> None:
    slots = ConnectionSlots(1, 0)
    slot = slots.acquire()
    assert slot is not None
    timer = PhaseTimer(ServerArgs(), slot, lambda _: None)
    timer.enter(Phase.HEAD)
    found = {}
    for phase in Phase:
        timer.enter(phase)
        found[phase] = slot in slots._ordinary.idle
    timer.stop()
    assert {phase for phase, is_idle in found.items() if is_idle} == {
        Phase.HEAD, Phase.IDLE, Phase.LINGER,
    }  # fmt: skip


async def test_other_callbacks_run_between_connections() -> None:
    scheduler, order = WorkScheduler(), []

    def take(name: str, times: int) -> None:
        time.sleep(0.003)  # longer than a round
        order.append(name)
        if times > 1:
            scheduler.add(lambda: take(name, times - 1))

    async def other() -> None:
        while order.count("a") < 3:
            order.append("other")
            await asyncio.sleep(0)

    scheduler.add(lambda: take("a", 3))
    scheduler.add(lambda: take("b", 3))
    await other()
    await asyncio.sleep(0.02)
    ours = [name for name in order if name != "other"]
    assert ours == ["a", "b"] * 3
    assert order.count("other") >= 4


async def test_a_callback_that_fails_does_not_stop_others() -> None:
    scheduler, order = WorkScheduler(), []
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    scheduler.add(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    scheduler.add(lambda: order.append("next"))
    await asyncio.sleep(0.02)
    assert order == ["next"]
