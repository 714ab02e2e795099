"""Requests that come faster than they can be served: those let in wait no longer than about a
reply takes, the others are told at once, and nothing is left of it."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from quire.bench.datasets import SampleRequest
from quire.bench.http_stream import Client
from quire.bench.load import RequestResult, Target, TrafficArgs, arrival_times, run_load

from .conftest import RunningServer, StartServer, start_demo
from .test_crowds import canary, open_files, resident_mib

pytestmark = pytest.mark.long
"""An overload takes minutes."""

BURST = 160
"""More than run at once. Of a longer burst a slow machine turns some away."""
SECONDS = 8
"""The least that a load lasts. A slow machine gets longer loads."""
MAX_NUM_SEQS = 128
"""A server's own choice."""
PROMPT_CHARS, OUTPUT_TOKENS = 200, 64


def num_threads(server: RunningServer) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/task").iterdir()))


def test_a_burst_upon_an_idle_server_is_served(start_server: StartServer) -> None:
    server = start_demo(start_server, 4096)
    measured = measure(server.url, BURST, output_tokens=4)
    assert len(measured.served) == BURST


def test_too_many_are_refused_at_once_and_leave_nothing(start_server: StartServer) -> None:
    """All at a rate that no machine serves; every refusal says when to come again."""
    server = start_demo(start_server, 4096)
    text, files = canary(server), open_files(server)
    measured = measure(server.url, 1500, rate=1000, output_tokens=200)
    assert measured.refused
    assert len(measured.served) >= MAX_NUM_SEQS
    assert measured.refusal_s(50) < 10
    server.until_idle(60)
    server.until(lambda: open_files(server) <= files + 2)
    assert canary(server) == text
    rejections = [v for name, v in server.metrics().items() if "admission_rejections" in name]
    assert sum(rejections) == len(measured.refused)


def test_five_times_the_capacity(start_server: StartServer) -> None:
    """Open loop: requests come at five times the rate that the server can serve, whatever becomes
    of them. Figures are printed (pytest -s). They leave out the onset, in which the server still
    takes an overload for a burst: after it, a queue as long as one reply has been worked off."""
    server = start_demo(start_server, 4096)
    full = measure(server.url, 600, seed=2, max_concurrency=MAX_NUM_SEQS)
    assert not full.refused
    flood = measure(server.url, int(3 * SECONDS * full.requests_per_s), 3 * full.requests_per_s)
    capacity = max(full.requests_per_s, flood.requests_per_s)
    onset_s = max(SECONDS / 2, 2 * full.reply_s)
    overload_s = onset_s + max(SECONDS / 2, 2 * full.reply_s)
    text, files, threads = canary(server), open_files(server), num_threads(server)
    print(f"\nall that can run: {full}\ncapacity: {capacity:.1f} requests/s")
    resident = []
    for seed in (10, 20):
        over = measure(
            server.url, int(5 * overload_s * capacity), 5 * capacity, seed, skip_s=onset_s
        )
        server.until_idle(60)
        server.until(lambda: open_files(server) <= files + 2)
        resident.append(resident_mib(server))
        print(f"  5x: {over}\n  resident: {resident[-1]:.0f} MiB")
        # Without admission control a queue of 1,024 would wait many times as long.
        assert over.ttft_s(99) < 4 * (full.ttft_s(99) + full.reply_s)
        assert over.refusal_s(99) < full.reply_s + 10
    assert resident[-1] < 1.05 * resident[0]
    assert num_threads(server) <= threads + 2
    assert canary(server) == text


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of one load. Its figures leave out who came in the first `skip_s`."""

    served: list[RequestResult]
    refused: list[RequestResult]
    skip_s: float = 0.0

    @property
    def requests_per_s(self) -> float:
        """Served ones, in the middle of the time: neither while it begins nor while it ends."""
        ends = sorted(one.start_time + one.latency for one in self.served)
        first, last = len(ends) // 3, len(ends) * 2 // 3
        return (last - first) / (ends[last] - ends[first])

    def ttft_s(self, percent: int) -> float:
        """A percentile of the time to the first token, over those served."""
        begin = min(one.start_time for one in self.served) + self.skip_s
        ordered = sorted(one.ttft for one in self.served if one.start_time >= begin)
        return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]

    @property
    def reply_s(self) -> float:
        """Mean time from the first token to the last."""
        return sum(one.latency - one.ttft for one in self.served) / len(self.served)

    def refusal_s(self, percent: int) -> float:
        """A percentile of the time to a refusal; 0 if there was none."""
        ordered = sorted(one.latency for one in self.refused)
        return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else 0.0

    def __str__(self) -> str:
        return (
            f"{self.requests_per_s:.1f} requests/s, "
            f"TTFT p50 {self.ttft_s(50):.3f} s, p99 {self.ttft_s(99):.3f} s, "
            f"replies take {self.reply_s:.2f} s; "
            f"{len(self.served)} served, {len(self.refused)} refused "
            f"(p99 after {self.refusal_s(99) * 1e3:.0f} ms)"
        )


def measure(
    url: str,
    count: int,
    rate: float = math.inf,
    seed: int = 0,
    max_concurrency: int | None = None,
    output_tokens: int = OUTPUT_TOKENS,
    skip_s: float = 0.0,
) -> Measured:
    """Sends `count` requests at a mean `rate` per second; inf: all at once, or as many of them as
    may be in flight."""
    choose = random.Random(seed)
    prompts = ["".join(choose.choices("abcdefgh ", k=PROMPT_CHARS)) for _ in range(count)]
    requests = [SampleRequest(prompt, PROMPT_CHARS, output_tokens) for prompt in prompts]
    due_s = arrival_times(TrafficArgs(request_rate=rate), count, seed)
    return dataclasses.replace(
        asyncio.run(_send(url, requests, due_s, max_concurrency)), skip_s=skip_s
    )


async def _send(
    url: str, requests: list[SampleRequest], due_s: list[float], max_concurrency: int | None
) -> Measured:
    client = Client(url)
    target = Target(client, "/v1/completions", "", {"ignore_eos": True, "temperature": 1.0})
    results = await run_load(target, requests, due_s, max_concurrency, lambda _: None)
    await client.close()
    served = [one for one in results if one.is_success]
    refused = [one for one in results if one.error.startswith("503")]
    if len(served) + len(refused) != len(results):
        odd = next(one for one in results if not one.is_success and one not in refused)
        raise AssertionError(f"neither served nor refused: {odd.error}")
    return Measured(served, refused)
