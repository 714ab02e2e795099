"""Clients that leave, read slowly, come in crowds or send rubbish: the others never notice."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from .conftest import RunningServer, StartServer

if TYPE_CHECKING:
    from .trace_collector import Collector

LONG = {"prompt": "abc", "max_tokens": 1500, "ignore_eos": True, "temperature": 1.0}


def connect(server: RunningServer) -> socket.socket:
    parts = urlsplit(server.url)
    assert parts.hostname
    assert parts.port
    return socket.create_connection((parts.hostname, parts.port), timeout=60)


def post(body: object, path: str = "/v1/completions") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def canary(server: RunningServer) -> str:
    with server.client() as client:
        body = {"prompt": "canary", "max_tokens": 8, "temperature": 0}
        reply = client.post("/v1/completions", json=body).raise_for_status().json()
    return str(reply["choices"][0]["text"])


def open_files(server: RunningServer) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_request(server: RunningServer, stream: bool) -> None:
    aborted = 'vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"}'
    before = server.metrics()[aborted]
    with connect(server) as client:
        client.sendall(post({**LONG, "stream": stream, "prompt": "x" * 400}))
        server.until(lambda: server.live()["requests"]["running"] == 1)
    server.until_idle()
    assert server.metrics()[aborted] == before + 1
    # What it had computed stays cached: the same prompt begins with a hit.
    with server.client() as http:
        reply = http.post("/v1/completions", json={"prompt": "x" * 400, "max_tokens": 1}).json()
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] >= 384


def storm(server: RunningServer, num_clients: int) -> None:
    """Clients that drop at random moments, streaming or not."""
    choose = random.Random(5)
    moments = [(choose.random() * 0.2, choose.random() < 0.5) for _ in range(num_clients)]

    def visit(moment: tuple[float, bool]) -> None:
        seconds, stream = moment
        with connect(server) as client:
            request = post({**LONG, "stream": stream})
            client.sendall(request if seconds > 0.02 else request[: len(request) // 2])
            time.sleep(seconds)

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(visit, moments))


def test_a_storm_of_leavers_leaves_nothing(server: RunningServer) -> None:
    text, files = canary(server), open_files(server)
    storm(server, 100)
    server.until_idle()
    server.until(lambda: open_files(server) <= files + 2)
    assert canary(server) == text
    assert server.live()["requests"]["running"] == 0


def resident_mib(server: RunningServer) -> float:
    return server.metrics()["process_resident_memory_bytes"] / 2**20


@pytest.mark.long
def test_a_long_storm_leaves_nothing(server: RunningServer) -> None:
    text, files, resident = canary(server), open_files(server), []
    for _ in range(5):
        storm(server, 500)
        server.until_idle()
        server.until(lambda: open_files(server) <= files + 2)
        resident.append(resident_mib(server))
    print("\nresident MiB after each 500 leavers:", [round(one) for one in resident])
    assert canary(server) == text
    assert resident[-1] < 1.05 * resident[0]


@pytest.mark.long
def test_slow_readers_are_cut_and_harm_nobody(start_server: StartServer) -> None:
    read_slowly(start_server(slow_reader_timeout=1.0), 2, n=16, max_tokens=1500)


@pytest.mark.long
def test_200_slow_readers_harm_nobody(start_server: StartServer) -> None:
    pool = {"num_gpu_blocks_override": 1500}  # the first round touches all of it
    server = start_server(slow_reader_timeout=1.0, engine=pool)
    files, resident = open_files(server), []
    for _ in range(5):
        read_slowly(server, 200, n=1, max_tokens=100)
        server.until(lambda: open_files(server) <= files + 2)
        resident.append(resident_mib(server))
    print("\nresident MiB after each 200 slow readers:", [round(one) for one in resident])
    assert resident[-1] < 1.05 * resident[0]


def read_slowly(server: RunningServer, num_readers: int, **options: int) -> None:
    """Clients that ask for much and read none of it."""
    text = canary(server)
    body = {**LONG, **options, "stream": True, "logprobs": 20}
    readers = [connect(server) for _ in range(num_readers)]
    try:
        for reader in readers:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.sendall(post(body))
        if num_readers < 10:  # more than that share too few tokens to fill anybody's buffer
            server.until(lambda: "cut off" in server.log(), timeout_s=40)
        assert canary(server) == text
        server.until_idle(200)
    finally:
        for reader in readers:
            reader.close()


def test_headers_must_come_soon_and_be_small(start_server: StartServer) -> None:
    server = start_server(header_timeout=0.5, body_timeout=0.7, keep_alive_timeout=1.0)
    rubbish = {
        b"GET /ready HTTP/1.1\r\nHost: localhost\r\n": b"408",
        post({"prompt": "a"})[:-5]: b"408",
        b"GET /ready?" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n": b"414",
        b"GET /ready HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 40_000 + b"\r\n\r\n": b"431",
        b"GET /ready HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n": b"431",
        b"\x16\x03\x01\x02\x00\x01\x00": b"400",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n": b"413",
    }
    for data, status in rubbish.items():
        with connect(server) as client:
            client.sendall(data)
            reply = b""
            while chunk := client.recv(65536):
                reply += chunk
            assert reply.split(b" ", 2)[1] == status, (data[:60], reply[:200])
            assert b'"error"' in reply
    # A body without a length that never ends is cut by its size.
    with connect(server) as client:
        client.sendall(
            b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        reply = b""
        try:
            for _ in range(40):
                client.sendall(chunk)
            reply = client.recv(65536)
        except OSError:
            pass
        assert not reply or b" 413 " in reply
    assert server.live()["state"] == "ready"


async def visit_all(server: RunningServer, num_clients: int, num_requests: int) -> list[Any]:
    """The replies to many requests, sent by clients that do not wait long after a refusal; None
    for each refusal."""
    request = post({"prompt": "abc", "max_tokens": 60, "ignore_eos": True})
    left, found = list(range(num_requests)), []
    parts = urlsplit(server.url)

    async def client() -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        while left:
            left.pop()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            reply = json.loads(await reader.readexactly(length))
            status = int(head.split()[1])
            assert status in (200, 503), reply
            found.append(reply if status == 200 else None)
            if status == 503:
                await asyncio.sleep(0.1)
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(client() for _ in range(num_clients)))
    return found


class Visit:
    """When one request came, got its first token and ended, by the server's clock."""

    def __init__(self, span: Any) -> None:
        told = {one.key: one.value.double_value for one in span.attributes}
        self.came_at = span.start_time_unix_nano / 1e9
        self.begun_at = self.came_at + told["gen_ai.latency.time_to_first_token"]
        self.ended_at = self.came_at + told["gen_ai.latency.e2e"]

    def num_ended_before(self, others: list[Visit]) -> int:
        """How many others ended while this one waited for its first token."""
        return sum(self.came_at < other.ended_at <= self.begun_at for other in others)


def test_an_overload_keeps_the_pace_of_those_let_in(
    start_server: StartServer, collector: Collector
) -> None:
    """Of 40 clients 8 are let in at a time: none of these waits until more than about as many
    others have ended, and all get their whole reply."""
    engine = {"max_num_seqs": 4, "max_num_queued_reqs": 4, "otlp_traces_endpoint": collector.url}
    server = start_server(engine=engine, env={"OTEL_BSP_SCHEDULE_DELAY": "100"})
    replies = asyncio.run(visit_all(server, 40, 400))
    served = [reply for reply in replies if reply is not None]
    assert {reply["usage"]["completion_tokens"] for reply in served} == {60}
    rejections = [v for name, v in server.metrics().items() if "admission_rejections" in name]
    assert sum(rejections) == len(replies) - len(served) > 0
    server.until_idle()
    visits = [Visit(collector.spans.get(timeout=30)[1]) for _ in served]
    # Some more may end between a request's arrival and its admission.
    assert max(visit.num_ended_before(visits) for visit in visits) < 2 * (4 + 4)
