"""Load that does not wait for answers: requests arrive as a Poisson process, whatever became of
the earlier ones."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
from dataclasses import dataclass

from quire.bench.datasets import SampleRequest
from quire.bench.http_stream import Client
from quire.bench.load import RequestResult, Target, TrafficArgs, arrival_times, run_load

PROMPT_CHARS, OUTPUT_TOKENS = 200, 64


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
