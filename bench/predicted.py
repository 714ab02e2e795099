"""What `quire explain` expects beside what the engine then does, for one model and some formats.

    python bench/predicted.py --model DIR [--formats none,int8,...] [--rounds 2] [--json F]

Weights are random (`load_format="dummy"`). In each round the expectation is made, then the engine
is measured as `quire bench latency` does it: the time of a batch with 64 tokens a request, less
that of the same batch with one; and of prompts of 512 tokens with one.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quire import LLM, EngineArgs, SamplingParams
from quire.inputs import PromptType
from quire.planning.plan import plan_engine
from quire.planning.speed.expected import STREAMS, speed_of

_CONTEXT, _NEW, _PROMPT = 256, 64, 512
_KINDS = (*map(str, STREAMS), "prompt")


def expected(args: EngineArgs) -> dict[str, float]:
    """Tokens per second, by kind of step."""
    speed = speed_of("", plan_engine(args))
    return {str(count): rate for count, rate in speed.streams.items()} | {"prompt": speed.prompt}


def measured(llm: LLM, rng: random.Random) -> dict[str, float]:
    """Tokens per second, by kind of step."""
    high = min(7000, llm.llm_engine.model_config.vocab_size)

    def prompts(count: int, length: int) -> Sequence[PromptType]:
        return [
            {"prompt_token_ids": [rng.randrange(high) for _ in range(length)]} for _ in range(count)
        ]

    def seconds(batch: Sequence[PromptType], tokens: int) -> float:
        params = SamplingParams(temperature=1, max_tokens=tokens, ignore_eos=True, detokenize=False)
        begin = time.perf_counter()
        llm.generate(batch, params, use_tqdm=False)
        return time.perf_counter() - begin

    rates = {}
    for count in STREAMS:
        batch = prompts(count, _CONTEXT - _NEW // 2)
        seconds(batch, 1)  # from here on the prompts are in the prefix cache
        few = min(seconds(batch, 1) for _ in range(2))
        rates[str(count)] = count * (_NEW - 1) / (seconds(batch, _NEW) - few)
    seconds(prompts(1, _PROMPT), 1)
    times = [seconds(prompts(1, _PROMPT), 1) for _ in range(3)]
    return rates | {"prompt": _PROMPT / statistics.median(times)}


def compare(model: str, name: str, rounds: int) -> dict[str, Any]:
    """Medians over the rounds of one format."""
    args = EngineArgs(
        model,
        load_format="dummy",
        quantization=None if name == "none" else name,
        skip_tokenizer_init=True,
        max_model_len=1024,
        max_num_seqs=64,
    )
    llm = LLM.from_engine_args(args)
    rng = random.Random(0)
    pairs = [(expected(args), measured(llm, rng)) for _ in range(rounds)]
    found: dict[str, Any] = {"model": model, "format": name}
    for number, what in enumerate(("expected", "measured")):
        found[what] = {k: statistics.median(pair[number][k] for pair in pairs) for k in _KINDS}
    return found


def main() -> int:
    """Prints a line for each format."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--formats", default="none,int8,int8_w8a8,int4,int4_w4a8")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = []
    for name in args.formats.split(","):
        found = compare(args.model, name, args.rounds)
        results.append(found)
        cells = [
            f"{kind}: {found['expected'][kind]:.1f}/{found['measured'][kind]:.1f} "
            f"({found['expected'][kind] / found['measured'][kind]:.2f})"
            for kind in _KINDS
        ]
        print(f"{name:<10}", "  ".join(cells), flush=True)
        if args.json:
            args.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
