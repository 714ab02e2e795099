"""The cost of the KV store where it is of no use, and the time that it saves after a restart and in
place of computing again.

    python bench/kv_costs.py --model DIR [--measures no-reuse,restart,preemption]
        [--prompts 4 --prompt-tokens 2000 --rounds 8] [--running 16 --context-tokens 1000]

no-reuse: prompts that are sent only once, one after the other, with a store in files and without,
by turns: `overhead` is by how much longer they take, the median of the rounds. --prompts a turn
with one token of output each, then one with 128.

restart: prompts of --prompt-tokens are computed; another engine on the same directory then has them
from files, and a second time from its KV cache; a third one, without a cache, computes them in the
same turns. TTFT of each, after --rest-ms without requests.

preemption: --running requests that grow from a quarter of --context-tokens to all of it, in a pool
that has room for all at their beginning and for two fifths at their end, so that they preempt each
other; with swap, to memory and to files, and without, in turns of a second. Outputs have to be
equal. `bound` is what swap could give if it took no time: tokens are computed again in
`computed_again_s`, at the speed of a prompt.

Wants a quiet machine.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from helpers.kv_engines import Bench, arguments, ask_all, ask_one, flush, llm_command, measure_all
from helpers.kv_turns import TakesTurns

from quire.llm import LLM


def no_reuse(bench: Bench) -> dict[str, Any]:
    """Turns of the same number of new prompts, with a store and without."""
    args = bench.args
    pool = 2 * args.prompt_tokens
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=args.directory) as path:
        plain, stored = bench.engine(pool, None), bench.engine(pool, Path(path))
        with plain, stored:
            for llm in (plain, stored):
                ask_all(llm, [bench.tokens(256)], 1)
            for num_outputs in (1, 128):
                ratios, seconds = [], {plain: 0.0, stored: 0.0}
                for number in range(args.rounds):
                    turn = [plain, stored] if number % 2 else [stored, plain]
                    count = args.prompts if num_outputs == 1 else 1
                    prompts = [bench.tokens(args.prompt_tokens) for _ in range(count)]
                    took = {llm: _seconds(llm, prompts, num_outputs) for llm in turn}
                    flush(stored)
                    ratios.append(took[stored] / took[plain])
                    seconds = {llm: seconds[llm] + took[llm] for llm in took}
                    llm_command(stored, "kv_store_clear")
                found |= {
                    f"overhead_{num_outputs}": statistics.median(ratios) - 1,
                    f"overhead_{num_outputs}_mean": seconds[stored] / seconds[plain] - 1,
                    f"seconds_{num_outputs}": seconds[plain],
                }
            counts = llm_command(stored, "kv_store_usage")["counts"]
    found["stored_bytes"] = sum(counts["store_bytes"].values())
    found["dropped_chunks"] = sum(counts.get("store_dropped", {}).values())
    return found


def _seconds(llm: LLM, prompts: Sequence[list[int]], num_outputs: int) -> float:
    begin = time.perf_counter()
    for prompt in prompts:
        ask_all(llm, [prompt], num_outputs)
    return time.perf_counter() - begin


def restart(bench: Bench) -> dict[str, Any]:
    """TTFT of the same prompts from files, from the pool and computed, by turns."""
    args = bench.args
    prompts = [bench.tokens(args.prompt_tokens) for _ in range(args.prompts)]
    pool = args.prompts * (args.prompt_tokens + 64)
    with tempfile.TemporaryDirectory(dir=args.directory) as path:
        with bench.engine(pool, Path(path)) as llm:
            wanted = []
            for prompt in prompts:
                wanted.append(ask_one(llm, prompt, 8)[0])
                flush(llm)
        computing = bench.engine(pool, None, enable_prefix_caching=False)
        started = bench.engine(pool, Path(path))
        ways = {"computed": computing, "disk": started, "pool": started}
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        shares: dict[str, list[float]] = {way: [] for way in ways}
        are_equal = True
        with computing, started:
            for llm in (computing, started):
                ask_one(llm, bench.tokens(256), 1)
            for prompt, tokens in zip(prompts, wanted, strict=True):
                for way, llm in ways.items():
                    time.sleep(args.rest_ms / 1000)
                    reply, cached, ttft = ask_one(llm, prompt, 8)
                    seconds[way].append(ttft)
                    shares[way].append(cached / len(prompt))
                    are_equal = are_equal and reply == tokens
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    return {
        **{f"ttft_{way}_s": value for way, value in medians.items()},
        **{f"cached_{way}": statistics.mean(values) for way, values in shares.items()},
        "computed_by_disk": medians["computed"] / medians["disk"],
        "computed_by_pool": medians["computed"] / medians["pool"],
        "outputs_are_equal": are_equal,
    }


def preemption(bench: Bench) -> dict[str, Any]:
    """The same requests with swap and without, in turns."""
    running, context = bench.args.running, bench.args.context_tokens
    prompts = [bench.tokens(context // 4) for _ in range(running)]
    num_outputs, pool_tokens = context - context // 4, running * context * 2 // 5
    modes: dict[str, dict[str, Any]] = {
        "memory": {"kv_store": True, "kv_store_size": 0, "kv_store_memory": 4 << 30},
        "files": {},
        "recompute": {},
    }
    with tempfile.TemporaryDirectory(dir=bench.args.directory) as path, ExitStack() as stack:
        engines: dict[str, TakesTurns] = {}
        prompt_s = 0.0
        for mode, options in modes.items():
            store = Path(path) if mode == "files" else None
            llm = stack.enter_context(bench.engine(pool_tokens, store, **options))
            prompt_s = ask_one(llm, bench.tokens(context), 1)[2]
            engines[mode] = TakesTurns(llm, prompts, num_outputs)
        unfinished = list(engines.values())
        while unfinished:
            unfinished = [one for one in unfinished if one.take()]
        found = {mode: one.found() for mode, one in engines.items()}
        for mode in ("memory", "files"):
            found[mode] |= engines[mode].stored()
    slow = found["recompute"]
    again_s = slow["computed_again"] * prompt_s / context
    return {
        **found,
        "speed_up": slow["seconds"] / found["memory"]["seconds"],
        "speed_up_files": slow["seconds"] / found["files"]["seconds"],
        "computed_again_s": again_s,
        "bound": slow["seconds"] / (slow["seconds"] - again_s),
        "outputs_are_equal": all(
            one.outputs == engines["recompute"].outputs for one in engines.values()
        ),
    }


MEASURES = {"no-reuse": no_reuse, "restart": restart, "preemption": preemption}


def main(words: Sequence[str] | None = None) -> int:
    """Prints a table; the exit code is 1 if outputs differ."""
    numbers = {
        "prompts": 4, "prompt_tokens": 2000, "rounds": 8, "running": 16, "context_tokens": 1000,
        "rest_ms": 1000,
    }  # fmt: skip
    parser = arguments(__doc__, numbers)
    parser.add_argument("--measures", default=",".join(MEASURES))
    args = parser.parse_args(words)
    names = args.measures.split(",")
    if unknown := {*names} - MEASURES.keys():
        parser.error(f"no measure {', '.join(unknown)}; there are {', '.join(MEASURES)}")
    bench = Bench(args)
    return measure_all(names, lambda name: MEASURES[name](bench), args.json)


if __name__ == "__main__":
    sys.exit(main())
