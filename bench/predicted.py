"""What `quire explain` expects beside what the engine then does, for one model and some formats.

    python bench/predicted.py --model DIR [--formats none,int8,...] [--rounds 3] [--json F]

Weights are random (`load_format="dummy"`). Cell by cell the two take turns, as a machine that is
shared changes its speed within seconds: the expectation is made just before and just after the
engine is measured, and the mean of both counts. The engine is measured as `quire bench latency`
does it: the time of a batch with 25 tokens a request, less that of the same batch with one; and of
prompts of 512 tokens with one. Its KV cache is small and was written everywhere before: memory that
is new costs more, once. Medians of the rounds and of their ratios, expected to measured.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from quire import LLM, EngineArgs, SamplingParams
from quire.inputs import PromptType
from quire.planning.plan import plan_engine
from quire.planning.speed.expected import STREAMS, ExpectedRates
from quire.units import ceil_div

_CONTEXT, _NEW, _PROMPT = 256, 25, 512
_WARM_UP_PROMPTS, _PROMPTS = 6, 2
_KINDS = (*map(str, STREAMS), "prompt")


class Measured:
    """An engine that runs. To be closed."""

    def __init__(self, args: EngineArgs) -> None:
        self._llm = LLM.from_engine_args(replace(args, num_gpu_blocks_override=_num_blocks(args)))
        self._rng = random.Random(0)
        self._high = min(7000, self._llm.llm_engine.model_config.vocab_size)
        self._batches = {count: self._prompts(count, _CONTEXT - _NEW // 2) for count in STREAMS}
        for batch in self._batches.values():
            self._seconds(batch, _NEW)  # from here on the prompts are in the prefix cache
        for _ in range(_WARM_UP_PROMPTS):
            self._seconds(self._prompts(1, _PROMPT), 1)

    def streams(self, count: int) -> float:
        """Tokens per second of `count` requests that generate, together."""
        batch = self._batches[count]
        few = self._seconds(batch, 1)
        return count * (_NEW - 1) / (self._seconds(batch, _NEW) - few)

    def prompt(self) -> float:
        """Tokens per second of a prompt."""
        times = [self._seconds(self._prompts(1, _PROMPT), 1) for _ in range(_PROMPTS)]
        return _PROMPT / statistics.mean(times)

    def close(self) -> None:
        """Frees its memory."""
        self._llm.close()

    def _prompts(self, count: int, length: int) -> Sequence[PromptType]:
        return [
            {"prompt_token_ids": [self._rng.randrange(self._high) for _ in range(length)]}
            for _ in range(count)
        ]

    def _seconds(self, batch: Sequence[PromptType], tokens: int) -> float:
        params = SamplingParams(temperature=1, max_tokens=tokens, ignore_eos=True, detokenize=False)
        begin = time.perf_counter()
        self._llm.generate(batch, params, use_tqdm=False)
        return time.perf_counter() - begin


def _num_blocks(args: EngineArgs) -> int:
    """The streams fit beside fewer prompts than the engine is warmed up with."""
    kv = plan_engine(args).compiled.kv
    streams = sum(STREAMS) * ceil_div(_CONTEXT + _NEW, kv.block_size)
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
    )
    cells: dict[str, list[tuple[float, float]]] = {kind: [] for kind in _KINDS}
    with closing(Measured(args)) as measured, closing(ExpectedRates(plan_engine(args))) as expected:
        for _ in range(rounds):
            for count in STREAMS:
                expect, measure = partial(expected.streams, count), partial(measured.streams, count)
                cells[str(count)].append(_in_turns(expect, measure))
            cells["prompt"].append(_in_turns(expected.prompt, measured.prompt))
    return {"model": model, "format": name, "rounds": cells}


def _in_turns(expect: Callable[[], float], measure: Callable[[], float]) -> tuple[float, float]:
    before, found, after = expect(), measure(), expect()
    return (before + after) / 2, found


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
