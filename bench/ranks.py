"""Several ranks against one with the same cores: prefill, one stream and many streams.

    python bench/ranks.py MODEL [--ranks 2] [--quantization int8] [--executor ray]

One rank has all threads; the ranks of a tensor-parallel engine, and the stages of a pipeline, have
an equal part of them each. On one socket ranks cannot win: what is measured is the cost of the
exchanges. The tokens of all engines are compared too, and must be the same. The last column has
the share of the time in which the ranks waited for each other. For vLLM's ranks:

    python bench/peers.py --model MODEL --peer vllm-tp2=VENV/bin/python --peer quire-tp2=python
        --option vllm-tp2='{"tensor_parallel_size": 2}'
        --option quire-tp2='{"tensor_parallel_size": 2, "num_threads": 1}'
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import time
from collections.abc import Sequence

import numpy as np

from quire import LLM, SamplingParams

_RUNS = 3
_LOADS = {
    "prefill of 512": (1, 512, 1),
    "one stream, 16 in, 64 out": (1, 16, 64),
    "8 streams, 128 in, 64 out": (8, 128, 64),
    "32 streams, 128 in, 64 out": (32, 128, 64),
}
"""Number of requests, and of tokens of each prompt and each reply."""


def prompts(count: int, length: int, run: int) -> list[list[int]]:
    """Random tokens, which no earlier run had."""
    random = np.random.default_rng([count, length, run])
    return random.integers(100, 20_000, (count, length)).tolist()


def waited_s(llm: LLM) -> float:
    """Seconds that a rank has waited for others so far, on average."""
    return statistics.fmean(one["waited_s"] for one in llm.collective_rpc("rank_stats"))


def measured(llm: LLM, load: tuple[int, int, int]) -> tuple[float, str]:
    """Tokens per second of the best run, and a hash of all tokens."""
    count, length, reply = load
    params = SamplingParams(temperature=0, max_tokens=reply, ignore_eos=True)
    best, digest = 0.0, hashlib.sha256()
    for run in range(_RUNS):
        given = [{"prompt_token_ids": ids} for ids in prompts(count, length, run)]
        began_at = time.perf_counter()
        outputs = llm.generate(given, params, use_tqdm=False)
        seconds = time.perf_counter() - began_at
        num_tokens = count * (length if reply == 1 else reply)
        best = max(best, num_tokens / seconds)
        digest.update(repr([output.outputs[0].token_ids for output in outputs]).encode())
    return best, digest.hexdigest()


def engine(args: argparse.Namespace, num_threads: int, tensor: int, stages: int) -> LLM:
    """An engine with so many threads in each rank."""
    return LLM(
        args.model,
        quantization=args.quantization,
        max_model_len=1024,
        max_num_seqs=32,
        num_threads=num_threads,
        speculation=False,  # it saves more steps on one rank than on stages
        kv_store=False,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=stages,
        distributed_executor_backend=args.executor if tensor * stages > 1 else None,
    )


def table(rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each of several ranks")
    parser.add_argument("--quantization")
    parser.add_argument("--executor", choices=["mp", "ray"], default="mp")
    args = parser.parse_args()
    num, each = args.ranks, args.threads
    kinds = {
        f"1 rank, {num * each} threads": (num * each, 1, 1),
        f"{num} parts, {each} each": (each, num, 1),
        f"{num} stages, {each} each": (each, 1, num),
    }
    rows = [["tokens per second", *_LOADS, "waiting"]]
    first: list[tuple[float, str]] = []
    for name, (num_threads, tensor, stages) in kinds.items():
        llm = engine(args, num_threads, tensor, stages)
        began_at = time.perf_counter()
        found = [measured(llm, load) for load in _LOADS.values()]
        waiting = waited_s(llm) / (time.perf_counter() - began_at)
        llm.close()
        first = first or found
        if [digest for _, digest in found] != [digest for _, digest in first]:
            raise SystemExit(f"{name}: other tokens than one rank")
        pairs = zip(found, first, strict=True)
        cells = [f"{speed:.1f} ({speed / one:.2f}x)" for (speed, _), (one, _) in pairs]
        rows.append([name, *cells, f"{waiting:.1%}"])
    print(table(rows))


if __name__ == "__main__":
    main()
