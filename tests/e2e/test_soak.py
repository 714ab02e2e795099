"""Half an hour of mixed traffic on one server: it gives the same tokens, and its memory stays.

The traffic has chats and completions, streamed and whole, with and without grammars, clients that
leave, and requests that are wrong. A seed chooses all of them. The parts share one server; each is
short enough for the time limit of a single test.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import sweeps
from running_server import RunningServer, engine_options

pytestmark = pytest.mark.long

PARTS, SECONDS, CLIENTS = 10, 180, 8
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
ALWAYS: dict[str, Any] = {"prompt": "one two three", "max_tokens": 24, "seed": 5, "logprobs": 2}


@pytest.fixture(scope="module")
def soaked(tiny_model: Path) -> Iterator[RunningServer]:
    running = RunningServer(engine_options(tiny_model, backend="auto"), {"port": 0})
    yield running.wait_until_serving()
    running.stop()


@pytest.fixture(scope="module")
def resident() -> list[float]:
    """MiB after each part."""
    return []


def one_request(client: httpx.Client, random: Random) -> None:
    """Any reply is right except a failure of the server; a client may leave in the middle."""
    text = " ".join(random.choices(WORDS, k=random.randrange(1, 120)))
    body: dict[str, Any] = {"max_tokens": random.randrange(1, 60), "seed": random.randrange(99)}
    if random.random() < 0.5:
        path, body["prompt"] = "/v1/completions", text
    else:
        path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": text}]
    kind = random.choice(["plain", "plain", "samples", "grammar", "wrong", "logprobs"])
    body |= {
        "plain": {}, "samples": {"n": 3}, "wrong": {"temperature": -1}, "logprobs": {"seed": 1},
        "grammar": {"structured_outputs": {"regex": "[a-f]{3,9}"}},
    }[kind]  # fmt: skip
    if random.random() < 0.5:
        with client.stream("POST", path, json={**body, "stream": True}) as reply:
            assert reply.status_code == (400 if kind == "wrong" else 200)
            leaves = random.random() < 0.3
            for _ in reply.iter_lines():
                if leaves:
                    break
    else:
        assert client.post(path, json=body).status_code == (400 if kind == "wrong" else 200)


def traffic(server: RunningServer, seed: str, until: float) -> int:
    """Requests one after another; returns how many."""
    random, count = Random(seed), 0
    with server.client() as client:
        while time.monotonic() < until:
            with suppress(httpx.TimeoutException):  # a loaded machine
                one_request(client, random)
            count += 1
    return count


def canary(server: RunningServer) -> Any:
    with server.client() as client:
        return client.post("/v1/completions", json=ALWAYS).raise_for_status().json()["choices"]


@pytest.mark.parametrize("part", range(PARTS))
def test_traffic_changes_nothing(part: int, soaked: RunningServer, resident: list[float]) -> None:
    before, until = canary(soaked), time.monotonic() + SECONDS
    with ThreadPoolExecutor(CLIENTS) as pool:
        seeds = [f"{sweeps.seed() or 0} {part} {number}" for number in range(CLIENTS)]
        counts = list(pool.map(lambda seed: traffic(soaked, seed, until), seeds))
    assert min(counts) > 0
    soaked.until_idle()
    assert canary(soaked) == before
    resident.append(soaked.metrics()["process_resident_memory_bytes"] / 2**20)
    print(
        f"\n{sum(counts)} requests; resident MiB after each part:", [round(one) for one in resident]
    )
    assert resident[-1] < 1.1 * max(resident[:2])  # the first part touches the KV cache
