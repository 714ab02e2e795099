"""The gain of the KV store on workloads with a predictable result.

    python bench/kv_workloads.py --model DIR [--workloads documents,rounds,trace]
        [--documents 6 --document-tokens 2000 --clients 4 --rounds 5 --round-tokens 400]
        [--trace conversation_trace.jsonl --scale 16 --requests 200] [--json FILE]

documents: a pool for half of several documents, each asked about twice, one after the other in
turn: the second question finds nearly nothing in the pool and all in files. rounds: conversations
that grow, in lockstep. trace: a Mooncake trace, its lengths divided by --scale, or one made up.

For each: the share of prompt tokens that was found, compared with a simulation
(`helpers/kv_prediction.py`); and the median of TTFT without a cache by TTFT with one, of the same
requests in turn, and a prediction from the measured times of computing and of loading: TTFT with
a cache is that of a prompt as long as what is not cached, and the time of loading what is loaded.

Outputs have to be equal everywhere. Wants a quiet machine.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from helpers.kv_engines import BLOCK, Bench, arguments, ask_one, flush, llm_command, measure_all
from helpers.kv_prediction import Prediction

from quire.kvstore.store import NUM_READ_THREADS
from quire.llm import LLM

TRACE_BLOCK = 512
"""Tokens of a hash id of Mooncake's traces."""


@dataclass(frozen=True)
class Ask:
    """A prompt, made of the replies to earlier requests where it goes on with one."""

    tokens: list[int]
    num_outputs: int = 1
    conversation: int | None = None


@dataclass
class Outcome:
    """Measurements of one workload's requests, in order."""

    prompts: list[list[int]] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    loaded: list[int] = field(default_factory=list)
    """Tokens that came from the store."""


def take(llm: LLM, outcome: Outcome, prompt: list[int], num_outputs: int) -> None:
    """Asks, and notes what came."""
    output, cached, seconds = ask_one(llm, prompt, num_outputs)
    outcome.prompts.append(prompt)
    outcome.outputs.append(output)
    outcome.cached.append(cached)
    outcome.seconds.append(seconds)


def replay(bench: Bench, asks: Sequence[Ask], pool_tokens: int) -> dict[str, Any]:
    """A workload without a cache and with one, by turns of one request."""
    with tempfile.TemporaryDirectory(dir=bench.args.directory) as path:
        plain = bench.engine(pool_tokens, None, enable_prefix_caching=False)
        stored = bench.engine(pool_tokens, Path(path))
        with plain, stored:
            for llm in (plain, stored):
                ask_one(llm, bench.tokens(256), 1)
            computing = measured_ttft(bench, plain, max(len(ask.tokens) for ask in asks))
            off, on = Outcome(), Outcome()
            histories: dict[int, list[int]] = {}
            for ask in asks:
                before = histories.get(ask.conversation, []) if ask.conversation else []
                prompt = [*before, *ask.tokens]
                for llm, outcome in ((plain, off), (stored, on)):
                    take(llm, outcome, prompt, ask.num_outputs)
                if ask.conversation:
                    histories[ask.conversation] = [*prompt, *on.outputs[-1]]
                flush(stored)
                stats = llm_command(stored, "kv_store_usage")
                num_loaded = sum(stats["counts"].get("hit_tokens", {}).values())
                on.loaded.append(num_loaded - sum(on.loaded))
    chunk = stats["chunk_blocks"] * BLOCK
    pool_blocks = bench.pool_blocks(pool_tokens)
    return compared(off, on, chunk, pool_blocks, computing, stats["counts"])


def compared(
    off: Outcome,
    on: Outcome,
    chunk: int,
    pool_blocks: int,
    computing: Callable[[int], float],
    counts: dict[str, Any],
) -> dict[str, Any]:
    """Return the measured and the predicted values."""
    prediction = Prediction(BLOCK, chunk, pool_blocks)
    for prompt, output in zip(on.prompts, on.outputs, strict=True):
        prediction.take(prompt, output)
    num_tokens = sum(map(len, on.prompts))
    loaded = sum(on.loaded)
    read_s = sum(counts.get("load_seconds", {}).values()) / NUM_READ_THREADS
    load_s = read_s / loaded if loaded else 0.0
    expected = [
        seconds / (computing(len(prompt) - hits) + load_s * num_loaded)
        for prompt, seconds, hits, num_loaded in zip(
            off.prompts, off.seconds, on.cached, on.loaded, strict=True
        )
        if hits
    ]
    ratios = [a / b for a, b, hits in zip(off.seconds, on.seconds, on.cached, strict=True) if hits]
    return {
        "requests": len(on.prompts),
        "hit_ratio": sum(on.cached) / num_tokens,
        "hit_ratio_predicted": prediction.ratio,
        "ttft_ratio": statistics.median(ratios) if ratios else None,
        "ttft_ratio_formula": statistics.median(expected) if expected else None,
        "loaded_tokens": loaded,
        "dropped_chunks": sum(counts.get("store_dropped", {}).values()),
        "gate_skipped_tokens": sum(counts.get("gate_skipped_tokens", {}).values()),
        "outputs_are_equal": off.outputs == on.outputs,
    }


def measured_ttft(bench: Bench, plain: LLM, longest: int) -> Callable[[int], float]:
    """TTFT by the length of a prompt of which nothing is cached: medians at some lengths, straight
    lines between them."""
    lengths = [BLOCK, 48, 128, 384, *range(768, longest + 768, 768)]
    times = [
        statistics.median(ask_one(plain, bench.tokens(length), 1)[2] for _ in range(3))
        for length in lengths
    ]

    def seconds(length: int) -> float:
        return float(np.interp(length, lengths, times))

    return seconds


def documents(bench: Bench) -> tuple[list[Ask], int]:
    """Each of them twice, in turn; and the pool's tokens."""
    args = bench.args
    texts = [bench.tokens(args.document_tokens) for _ in range(args.documents)]
    asks = [Ask([*text, *bench.tokens(32)]) for _ in range(2) for text in texts]
    return asks, args.documents * args.document_tokens // 2


def rounds(bench: Bench) -> tuple[list[Ask], int]:
    """Conversations in lockstep, in a pool for half of them at their end."""
    args = bench.args
    asks = [
        Ask(bench.tokens(args.round_tokens), args.reply_tokens, client + 1)
        for _ in range(args.rounds)
        for client in range(args.clients)
    ]
    longest = args.rounds * (args.round_tokens + args.reply_tokens)
    return asks, args.clients * longest // 2


def trace(bench: Bench) -> tuple[list[Ask], int]:
    """The requests of a trace, in a pool for a tenth of its blocks."""
    args, size = bench.args, max(BLOCK, TRACE_BLOCK // bench.args.scale)
    entries = list(read_trace(args.trace, args.requests) if args.trace else made_up(bench))
    asks = []
    for entry in entries:
        tokens = [one for block in entry["hash_ids"] for one in tokens_of(block, size, bench)]
        wanted = max(2, min(entry["input_length"] // args.scale, args.max_model_len - 2))
        asks.append(Ask(tokens[:wanted]))
    unique = {block for entry in entries for block in entry["hash_ids"]}
    return asks, len(unique) * size // 10


def tokens_of(block: int, size: int, bench: Bench) -> list[int]:
    """The tokens that stand for one hash id."""
    chance = random.Random(block)
    return [chance.randrange(3, bench.vocab_size) for _ in range(size)]


def read_trace(path: Path, most: int) -> Iterator[dict[str, Any]]:
    """Lines of Mooncake's format."""
    with path.open() as file:
        for _, text in zip(range(most), file, strict=False):
            yield json.loads(text)


def made_up(bench: Bench) -> Iterator[dict[str, Any]]:
    """Sessions of a few turns that begin with one of four system prompts."""
    chance, sessions, new = bench.random, [], 1000
    for _ in range(bench.args.requests):
        if sessions and chance.random() < 0.6:
            ids = chance.choice(sessions)
        else:
            ids = [chance.randrange(4)]
            sessions.append(ids)
        for _ in range(chance.randrange(1, 4)):
            ids.append(new)
            new += 1
        yield {"hash_ids": [*ids], "input_length": len(ids) * TRACE_BLOCK}


REPLAYS: dict[str, Callable[[Bench], tuple[list[Ask], int]]] = {
    "documents": documents, "rounds": rounds, "trace": trace,
}  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    """Prints a table; the exit code is 1 if outputs differ."""
    numbers = {
        "documents": 6, "document_tokens": 2000, "clients": 4, "rounds": 5, "round_tokens": 400,
        "reply_tokens": 32, "scale": 16, "requests": 200,
    }  # fmt: skip
    parser = arguments(__doc__, numbers)
    parser.add_argument("--workloads", default=",".join(REPLAYS))
    parser.add_argument("--trace", type=Path)
    args = parser.parse_args(words)
    names = args.workloads.split(",")
    if unknown := {*names} - REPLAYS.keys():
        parser.error(f"no workload {', '.join(unknown)}; there are {', '.join(REPLAYS)}")
    bench = Bench(args)
    return measure_all(names, lambda name: replay(bench, *REPLAYS[name](bench)), args.json)


if __name__ == "__main__":
    sys.exit(main())
