"""Compares the speed that `quire explain` predicts with the measured one, for one model.

    python bench/predicted.py --model DIR [--formats none,int8,...] [--rounds 3] [--json F]

Weights are random (`load_format="dummy"`). The memory of a machine that is shared is twice as fast
in one second as in the next, so the two take turns step by step: a step of the engine, then the
steps from which `quire explain` expects its time. What counts are the sums of a round, and of the
rounds the median. The engine's steps are those of requests at temperature 1 that all generate, as
in `quire bench latency`; prompts of 512 tokens are timed from the call to the first token. The KV
cache is small and was written everywhere before: memory that is new costs more, once.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from quire import EngineArgs, SamplingParams
from quire.frontend.offline.llm_engine import LLMEngine
from quire.planning.plan import plan_engine
from quire.planning.speed.expected import STREAMS, ExpectedRates
from quire.units import ceil_div

_CONTEXT, _PROMPT = 256, 512
_STEPS = 16
"""Steps per round. In the middle one, the context has the length of the prediction."""
_PROMPTS, _WARM_UP_PROMPTS = 3, 6


class Measured:
    """An engine that runs. To be closed."""

    def __init__(self, args: EngineArgs) -> None:
        args = replace(args, num_gpu_blocks_override=_num_blocks(args))
        self._engine = LLMEngine.from_engine_args(args)
        self._rng = random.Random(0)
        self._prompts = [self._prompt(_CONTEXT - _STEPS // 2) for _ in range(max(STREAMS))]
        self.start(max(STREAMS))  # from here on the prompts are in the prefix cache
        for _ in range(_STEPS):
            self.step_seconds()
        self.end()
        for _ in range(_WARM_UP_PROMPTS):
            self.prompt_seconds()

    def start(self, count: int) -> None:
        """Begins requests; returns when each has its first token."""
        params = _params(self._engine.model_config.max_model_len - _CONTEXT)
        self._ids = [str(number) for number in range(count)]
        for name, ids in zip(self._ids, self._prompts, strict=False):
            self._engine.add_request(name, {"prompt_token_ids": ids}, params)
        started: set[str] = set()
        while len(started) < count:
            started |= {output.request_id for output in self._engine.step()}

    def step_seconds(self) -> float:
        """Return the seconds of a step that generates one token per stream."""
        begin = time.perf_counter()
        self._engine.step()
        return time.perf_counter() - begin

    def end(self) -> None:
        """Abort the running streams."""
        self._engine.abort_request(self._ids)

    def prompt_seconds(self) -> float:
        """Return the seconds from sending a new prompt to its first token."""
        prompt = self._prompt(_PROMPT)
        begin = time.perf_counter()
        self._engine.add_request("prompt", {"prompt_token_ids": prompt}, _params(1))
        while not self._engine.step():
            pass
        return time.perf_counter() - begin

    def close(self) -> None:
        """Frees its memory."""
        self._engine.shutdown()

    def _prompt(self, length: int) -> list[int]:
        high = min(7000, self._engine.model_config.vocab_size)
        return [self._rng.randrange(high) for _ in range(length)]


def _params(max_tokens: int) -> SamplingParams:
    return SamplingParams(
        temperature=1, max_tokens=max_tokens, ignore_eos=True, detokenize=False
    )  # fmt: skip


def _num_blocks(args: EngineArgs) -> int:
    """Return the KV blocks for the streams and for the prompts, of which the warm-up has more."""
    kv = plan_engine(args).compiled.kv
    streams = max(STREAMS) * ceil_div(_CONTEXT + _STEPS, kv.block_size)
    prompts = (_WARM_UP_PROMPTS - 1) * ceil_div(_PROMPT + 1, kv.block_size)
    return (streams + prompts) * len(kv.layout.groups)


def compare(model: str, name: str, rounds: int) -> dict[str, Any]:
    """By kind of step, of one format: tokens per second of each round, expected and measured."""
    args = EngineArgs(
        model,
        load_format="dummy",
        quantization=None if name == "none" else name,
        skip_tokenizer_init=True,
        max_model_len=1024,
        max_num_seqs=64,
        disable_log_stats=True,
        speculation=False,
    )
    cells: dict[str, list[tuple[float, float]]] = {}
    measured = Measured(args)
    with closing(measured), closing(ExpectedRates(plan_engine(args), least_s=0.0)) as expected:
        for _ in range(rounds):
            for count in STREAMS:
                expect = partial(expected.streams, count)
                measured.start(count)
                pair = _in_turns(expect, measured.step_seconds, count, _STEPS)
                cells.setdefault(str(count), []).append(pair)
                measured.end()
            pair = _in_turns(expected.prompt, measured.prompt_seconds, _PROMPT, _PROMPTS)
            cells.setdefault("prompt", []).append(pair)
    return {"model": model, "format": name, "rounds": cells}


def _in_turns(
    rate: Callable[[], float], seconds: Callable[[], float], num_tokens: int, times: int
) -> tuple[float, float]:
    """Tokens per second over all the turns: expected, and measured of `num_tokens` in each."""
    expected_s = measured_s = 0.0
    for _ in range(times):
        measured_s += seconds()
        expected_s += num_tokens / rate()
    return times * num_tokens / expected_s, times * num_tokens / measured_s


def _line(found: dict[str, Any]) -> str:
    texts = []
    for kind, pairs in found["rounds"].items():
        expected, measured = (statistics.median(one) for one in zip(*pairs, strict=True))
        ratios = [e / m for e, m in pairs]
        texts.append(
            f"{kind}: {expected:.1f}/{measured:.1f} ({statistics.median(ratios):.2f}, "
            f"{min(ratios):.2f}-{max(ratios):.2f})"
        )
    return f"{found['format']:<10} " + "  ".join(texts)


def main() -> int:
    """Prints a line for each format."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--formats", default="none,int8,int8_w8a8,int4,int4_w4a8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = []
    for name in args.formats.split(","):
        found = compare(args.model, name, args.rounds)
        results.append(found)
        print(_line(found), flush=True)
        if args.json:
            args.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
