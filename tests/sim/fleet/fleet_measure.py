"""Measures a real replica of the demo model, for `Figures` of simulated ones.

A server computes one prompt after the other for the time of a prompt's token, then several replies
at once for that of a step and of a row, and at last conversations, which are also simulated with
these figures.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

import numpy as np
from fleet_cases import RECORD
from fleet_load import Conversation, Shape, conversations
from fleet_replica import Figures
from fleet_routers import Simple
from fleet_run import Fleet
from helpers.server_process import Server

from quire.bench.datasets import SampleRequest
from quire.bench.http_stream import Client
from quire.bench.load import RequestResult, Target, send_one

SETTINGS = Figures(0, 0, 0)
COMMAND = [
    sys.executable, "-m", "quire", "serve", "demo", "--port", "{port}", "--num-threads", "1",
    "--max-num-seqs", str(SETTINGS.max_num_seqs),
    "--max-num-batched-tokens", str(SETTINGS.max_num_batched_tokens),
    "--num-gpu-blocks-override", "4096", "--no-kv-store", "--enable-prompt-tokens-details",
]  # fmt: skip
TIMES = ("step_s", "prompt_token_s", "row_s", "hop_s")
_PER_SECOND, _MOST_TOKENS = 1.0, 4000
LENGTHS = (16, 64, 128, 256, 384, 500)
ROWS = (1, 4, 8, 16, 32)


def measured(server: Server) -> Figures:
    """The times of a server."""
    rng = random.Random(time.time_ns())

    def request(num_tokens: int, num_reply: int) -> SampleRequest:
        return SampleRequest([rng.randrange(256) for _ in range(num_tokens)], num_tokens, num_reply)

    first_s = [
        median(
            one.ttft for one in server.send([request(n, 1) for _ in range(15)], [0.0] * 15, 1)[0]
        )
        for n in LENGTHS
    ]
    each_s = []
    for count in ROWS:
        results, _ = server.send([request(4, 64) for _ in range(count)], [0.0] * count)
        # An event of a stream may have several tokens.
        each_s.append(median((one.latency - one.ttft) / 63 for one in results))
    token_s, with_one = np.polyfit(LENGTHS, first_s, 1)
    row_s, _ = np.polyfit(ROWS, each_s, 1)
    step_s = each_s[0] - row_s
    if min(token_s, row_s, step_s) <= 0:
        raise SystemExit("the machine has too much else to do: measure again when it is quiet")
    hop_s = max(0.0, (with_one - step_s) / 2)
    return replace(SETTINGS, step_s=step_s, prompt_token_s=token_s, row_s=row_s, hop_s=hop_s)


def main() -> None:
    """Writes the record, and prints how well a simulated replica agrees with the real one."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(COMMAND, {"QUIRE_LOG_LEVEL": "WARNING"}, Path(folder, "log"), 120)
        try:
            figures = measured(server)
            times = {name: asdict(figures)[name] for name in TIMES}
            RECORD.write_text(json.dumps(times, indent=2) + "\n")
            for name, value in times.items():
                print(f"{name:16} {1e6 * value:8.1f} us")
            _compare(server, replace(figures, num_blocks=4096))
        finally:
            server.close()


def _compare(server: Server, figures: Figures) -> None:
    shape = Shape(num_turns=4, special_share=0)
    load = conversations(shape, 30, _PER_SECOND, seed=time.time_ns() % 2**32)
    load = [replace(one, repeats_replies=False) for one in load if len(one.text) < _MOST_TOKENS]
    results = asyncio.run(_served(server, load))
    found = sum(one.cached_tokens for one in results) / sum(one.prompt_len for one in results)
    ttft_ms = 1e3 * median(one.ttft for one in results)
    simulated = Fleet(1, figures).run(load, Simple(1))
    print(f"a real replica:      hits {found:.3f}, TTFT p50 {ttft_ms:.1f} ms")
    print(f"a simulated replica: hits {simulated.hits:.3f}, "
          f"TTFT p50 {1e3 * simulated.quantile(0.5):.1f} ms")  # fmt: skip


async def _served(server: Server, load: list[Conversation]) -> list[RequestResult]:
    """The conversations' turns on a server, with their pauses."""
    server.resume()
    client = Client(server.url)
    extra = {"ignore_eos": True, "temperature": 0}
    target = Target(client, "/v1/completions", server.model, extra)
    results = list[RequestResult]()

    async def talk(one: Conversation) -> None:
        await asyncio.sleep(one.starts_at)
        for (begin, count), pause_s in zip(one.turns, one.pauses, strict=True):
            prompt = [token % 256 for token in one.text[:begin]]
            results.append(await send_one(target, SampleRequest(prompt, begin, count), one.name))
            await asyncio.sleep(pause_s)

    await asyncio.gather(*(talk(one) for one in load))
    await client.close()
    failed = [one.error for one in results if not one.is_success]
    if failed:
        raise SystemExit(f"{len(failed)} requests failed: {failed[0]}")
    return results
