"""The load generator against scripted servers, good and bad."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from page_server import ScriptedServer, say, say_haltingly

from quire.bench.datasets import SampleRequest
from quire.bench.http_stream import Client, ReplyError
from quire.bench.load import RequestResult, Target, request_body, run_load, send_one
from quire.cli import main
from quire.errors import ConfigError

REQUEST = SampleRequest("one two", 2, 6)


def target(url: str, endpoint: str = "/v1/completions", **extra: Any) -> Target:
    return Target(Client(url), endpoint, "m", extra)


async def send(to: Target) -> RequestResult:
    """One request, and everything closed after it."""
    try:
        return await send_one(to, REQUEST, "0")
    finally:
        await to.client.close()


def test_the_body_of_a_request() -> None:
    body = json.loads(request_body(target("http://x", temperature=0), REQUEST))
    assert body == {
        "model": "m", "max_tokens": 6, "stream": True, "prompt": "one two", "temperature": 0,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    chat = json.loads(request_body(target("http://x", "/v1/chat/completions"), REQUEST))
    assert chat["messages"] == [{"role": "user", "content": "one two"}]
    assert "prompt" not in chat


@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/chat/completions"])
def test_times_and_tokens(endpoint: str) -> None:
    with ScriptedServer() as server:
        server.script.delay_s = 0.03
        server.script.answer = lambda _: say("x" * 24)
        found = asyncio.run(send(target(server.url, endpoint)))
    assert found.is_success
    assert found.text == "x" * 24
    assert (found.prompt_len, found.output_tokens, found.cached_tokens) == (48, 6, 32)
    assert len(found.itl) == 6  # five more tokens, and the event that says why it ended
    assert found.latency >= 0.15
    assert found.latency == pytest.approx(found.ttft + sum(found.itl))


@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/chat/completions"])
def test_an_event_without_text_is_a_token_s_arrival(endpoint: str) -> None:
    """As in vLLM's benchmark: gaps are gaps between events with choices."""
    with ScriptedServer() as server:
        server.script.delay_s = 0.03
        server.script.answer = lambda _: say_haltingly("x" * 12)
        found = asyncio.run(send(target(server.url, endpoint)))
    assert (found.text, found.output_tokens) == ("x" * 12, 6)
    assert len(found.itl) == 6


def test_concurrency_is_bounded_and_waiting_is_not_latency() -> None:
    active: list[int] = []
    peak = 0

    def answer(_: Any) -> Iterator[dict[str, Any]]:
        nonlocal peak
        active.append(1)
        peak = max(peak, len(active))
        yield from say("x" * 20)
        active.pop()

    with ScriptedServer() as server:
        server.script.delay_s = 0.02
        server.script.answer = answer
        done: list[RequestResult] = []
        run = run_load(target(server.url), [REQUEST] * 6, [0.0] * 6, 2, done.append)
        begin = time.perf_counter()
        found = asyncio.run(run)
        elapsed = time.perf_counter() - begin
    assert peak == 2
    assert len(done) == 6
    assert all(one.is_success for one in found)
    assert sum(one.latency for one in found) < 2 * elapsed
    waits = sorted(one.queue_time for one in found)
    assert waits[-1] > 0.15
    assert waits[0] < waits[-1] / 2


def test_requests_are_sent_when_they_are_due() -> None:
    with ScriptedServer() as server:
        run = run_load(target(server.url), [REQUEST] * 3, [0.0, 0.2, 0.4], None, lambda _: None)
        found = asyncio.run(run)
    starts = [one.start_time - found[0].start_time for one in found]
    assert starts[1] > 0.15
    assert starts[2] > 0.35


def test_a_refusal_is_a_result() -> None:
    with ScriptedServer() as server:
        server.script.refusal = (503, "full")
        found = asyncio.run(send(target(server.url)))
    assert not found.is_success
    assert found.error.startswith("503: ")


def test_nobody_there() -> None:
    found = asyncio.run(send(target("http://127.0.0.1:9")))
    assert "127.0.0.1:9" in found.error
    for url in ("127.0.0.1:8000", "http://[::1", "http://127.0.0.1:99999", "http://a:b"):
        with pytest.raises(ConfigError, match="must be a URL"):
            Client(url)


async def against(reply: bytes) -> RequestResult:
    """A request to a server that sends these bytes and closes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        return await send(target(f"http://127.0.0.1:{port}"))


EVENT = b'data: {"choices": [{"text": "a"}]}\n\n'


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "where a length belongs"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n", "piece of -5"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n", "piece of"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n" + EVENT, "connection broke"),
        (b"HTTP/1.1 200 OK\r\n\r\ndata: not json\n\n", "malformed"),
        (b'HTTP/1.1 200 OK\r\n\r\ndata: {"choices": 5}\n\n', "Expected"),
        (b"HTTP/1.1 200 OK\r\n\r\n: ping\n\n", "no token arrived"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000 + b"\r\n\r\n", ""),
        (
            b"HTTP/1.1 200 OK\r\n\r\n" + EVENT + b'data: {"error": {"message": "broke"}}\n\n',
            "broke",
        ),
    ],
)
def test_a_bad_server_is_a_result_too(reply: bytes, error: str) -> None:
    found = asyncio.run(asyncio.wait_for(against(reply), 60))
    assert not found.is_success
    assert error in found.error
    assert found.error


def test_events_may_be_cut_anywhere() -> None:
    stream = EVENT * 3 + b"data: [DONE]\n\n"
    for size in (1, 3, 7, 40):
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        found = asyncio.run(against(head + body + b"0\r\n\r\n"))
        assert found.is_success, found.error
        assert found.text == "aaa"


def test_a_kept_connection_is_used_again_and_a_closed_one_replaced() -> None:
    async def run() -> tuple[int, bytes]:
        connections = 0
        handled: list[int] = []

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            with suppress(asyncio.IncompleteReadError):  # the last client leaves after one
                for _ in range(2):
                    await reader.readuntil(b"\r\n\r\n")
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                    await writer.drain()
            writer.close()
            await writer.wait_closed()
            handled.append(connections)

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        body = b""
        async with server:
            client = Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            for _ in range(5):
                body += await client.body(await client.send("GET", "/"))
                await asyncio.sleep(0.05)
            await client.close()
            while len(handled) < connections:
                await asyncio.sleep(0.01)
        return connections, body

    assert asyncio.run(asyncio.wait_for(run(), 60)) == (3, b"ok" * 5)


@pytest.fixture
def busy_server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        server.script.delay_s = 0.002
        server.script.answer = lambda body: say("x" * 4 * body["max_tokens"])
        yield server


def test_the_command_writes_what_vllms_writes(
    busy_server: ScriptedServer,
    model_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [
        "bench", "serve", "--base-url", busy_server.url, "--model", str(model_dir),
        "--num-prompts", "12", "--input-len", "20", "--output-len", "8", "--max-concurrency", "4",
        "--percentile-metrics", "ttft,e2el", "--metric-percentiles", "50,99", "--goodput",
        "ttft:5000", "--save-result", "--result-dir", str(tmp_path), "--result-filename", "r.json",
        "--metadata", "note=quiet", "--plot", str(tmp_path / "r.svg"), "--disable-tqdm",
    ]  # fmt: skip
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "Successful requests:                     12" in out
    saved = json.loads((tmp_path / "r.json").read_text())
    assert saved["total_output_tokens"] == 96
    assert saved["request_goodput"] > 0
    assert saved["note"] == "quiet"
    for key in ("median_ttft_ms", "p99_e2el_ms", "request_rate", "burstiness", "num_prompts"):
        assert key in saved
    assert "ttfts" not in saved
    assert (tmp_path / "r.svg").read_text().startswith("<svg ")
    assert busy_server.script.requests[-1]["ignore_eos"] is True
    assert main([*words[:-1], "--append-result", "--save-detailed"]) == 0
    lines = (tmp_path / "r.json").read_text().splitlines()
    assert len(json.loads(lines[1])["ttfts"]) == 12


def test_the_command_explains_a_server_that_refuses(
    busy_server: ScriptedServer, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    busy_server.script.refusal = (404, "no such model")
    words = ["bench", "serve", "--base-url", busy_server.url, "--model", str(model_dir)]
    assert main([*words, "--num-prompts", "1"]) == 1
    assert "no such model" in capsys.readouterr().err
    with pytest.raises(ReplyError):
        asyncio.run(Client("http://127.0.0.1:9").send("GET", "/"))
