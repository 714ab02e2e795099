"""Random loads, after which all counters that describe one thing have to agree: the usage of the
replies, `/metrics` and `/kv`."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

from tools.attack_server.attacks import COMPLETIONS, Attack, words
from tools.attack_server.client import crowd, get, reply

_MOST_WAIT_S = 30.0
_NUM_CLIENTS = 8
_OF_ENGINES = ("vllm:", "quire:")


def agree(port: int, seconds: float) -> Counter[Any]:
    """Clients whose prompts share beginnings; then each pair of counters is compared."""
    before, end = _wait_until_idle(port), time.monotonic() + seconds
    books = crowd(_NUM_CLIENTS, lambda number: _load(port, random.Random(number), end))
    used = Counter[str]()
    for book, times in books.items():
        for name, count in book:
            used[name] += times * count
    after, kv = _wait_until_idle(port), get(port, "/kv")
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    found = Counter(asked=used.pop("replies"))
    for name, values in _pairs(used, grown, after, kv).items():
        is_same = len({*values}) == 1
        found["agree" if is_same else f"{name} differ: {values}"] += 1
    return found


def _load(port: int, choose: random.Random, end: float) -> tuple[tuple[str, int], ...]:
    """The usage that was reported to one client; each prompt counts once, for any `n`."""
    used = Counter[str]()
    while time.monotonic() < end:
        prompt = words(choose.choice((20, 400, 900))) + str(choose.randrange(3))
        body = {
            "prompt": prompt, "n": choose.choice((1, 1, 2, 4)), "seed": choose.randrange(99),
            "max_tokens": choose.randrange(1, 24), "ignore_eos": choose.random() < 0.5,
        }  # fmt: skip
        usage = reply(port, COMPLETIONS, body)["usage"]
        used["prompt"] += usage["prompt_tokens"]
        used["generated"] += usage["completion_tokens"]
        used["cached"] += usage["prompt_tokens_details"]["cached_tokens"]
        used["replies"] += 1
    return tuple(used.items())


def _pairs(
    used: Counter[str], grown: dict[str, float], after: dict[str, float], kv: dict[str, Any]
) -> dict[str, tuple[float, ...]]:
    """Values that have to be the same, by what they count."""

    def total(name: str, values: dict[str, float] = grown) -> float:
        return sum(value for series, value in values.items() if series.partition("{")[0] == name)

    hits = kv["counts"].get("hit_tokens", {})
    return {
        "prompt tokens": (used["prompt"], total("vllm:prompt_tokens_total"),
                          total("vllm:prompt_tokens_by_source_total")),
        "cached tokens": (used["cached"], total("vllm:prompt_tokens_cached_total"),
                          total("vllm:prompt_tokens_cached_by_source_total")),
        "generated tokens": (used["generated"], total("vllm:generation_tokens_total"),
                             total("vllm:request_generation_tokens_sum")),
        "ended replies": (total("vllm:request_success_total"),
                          total("vllm:e2e_request_latency_seconds_count")),
        "stored bytes": (total("quire:kv_store_usage_bytes", after),
                         float(sum(one["bytes"] for one in kv["tiers"]))),
        "tokens from the store": (total("quire:kv_store_hit_tokens_total", after),
                                  float(sum(hits.values()))),
    }  # fmt: skip


def _wait_until_idle(port: int) -> dict[str, float]:
    """`/metrics` by series, once nothing runs and nothing more is written to the store."""
    last, end = dict[str, float](), time.monotonic() + _MOST_WAIT_S
    while time.monotonic() < end:
        lines = (line for line in get(port, "/metrics").splitlines() if line[:1] != "#")
        pairs = (line.rsplit(" ", 1) for line in lines)
        now = {name: float(value) for name, value in pairs if name.startswith(_OF_ENGINES)}
        if now == last:
            return now
        last = now
        time.sleep(0.5)
    return last


COUNTERS: dict[str, Attack] = {"counters that have to agree": agree}
