"""Engines of one model with and without a KV store, for the benchmarks of the store."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from quire.llm import LLM
from quire.params import SamplingParams

BLOCK = 16


class Bench:
    """Makes engines of one model, and prompts for them."""

    def __init__(self, args: argparse.Namespace) -> None:
        """`args`: of `arguments`."""
        self.args = args
        self.random = random.Random(args.seed)
        config = json.loads((Path(args.model) / "config.json").read_text())
        self.vocab_size = int(config["vocab_size"])

    def engine(self, pool_tokens: int, store: Path | None, **more: Any) -> LLM:
        """One with its chunk files in `store`; None: without a store, if nothing else is asked."""
        tiers = {"kv_store": False} if store is None else {"kv_store_path": str(store)}
        return LLM(
            model=self.args.model, max_model_len=self.args.max_model_len, block_size=BLOCK,
            num_gpu_blocks_override=self.pool_blocks(pool_tokens),
            disable_log_stats=False, speculation=False, **{**tiers, **more},
        )  # fmt: skip

    def pool_blocks(self, pool_tokens: int) -> int:
        """Blocks of a pool for `pool_tokens` tokens, but at least for one prompt."""
        return max(pool_tokens, self.args.max_model_len) // BLOCK

    def tokens(self, count: int) -> list[int]:
        """Random tokens."""
        return [self.random.randrange(3, self.vocab_size) for _ in range(count)]


def arguments(description: str | None, numbers: Mapping[str, int]) -> argparse.ArgumentParser:
    """The options that all of these benchmarks have; `numbers`: further ones, with defaults."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--model", required=True, help="checkpoint directory")
    parser.add_argument("--directory", help="where chunk files are kept meanwhile")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    for name, default in {"seed": 42, "max_model_len": 4096, **numbers}.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=default)
    return parser


def llm_command(llm: LLM, name: str, *args: Any) -> Any:
    """One of the engine's commands."""
    return llm.llm_engine._command(name, *args)


def flush(llm: LLM) -> None:
    """Waits until all that was computed is stored."""
    if not llm_command(llm, "kv_store_flush", 60.0):
        raise TimeoutError("the KV store did not write what it was given")


def ask_all(llm: LLM, prompts: Sequence[list[int]], num_outputs: int) -> list[list[int]]:
    """The tokens of each reply."""
    params = SamplingParams(temperature=0.0, max_tokens=num_outputs, ignore_eos=True)
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    return [list(one.outputs[0].token_ids) for one in llm.generate(asked, params, use_tqdm=False)]


def ask_one(llm: LLM, prompt: list[int], num_outputs: int) -> tuple[list[int], int, float]:
    """The reply, cached tokens of the prompt, and seconds to the first token."""
    params = SamplingParams(temperature=0.0, max_tokens=num_outputs, ignore_eos=True)
    [one] = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    assert one.metrics is not None
    return (
        list(one.outputs[0].token_ids),
        one.num_cached_tokens or 0,
        one.metrics.first_token_latency,
    )


def measure_all(
    names: Iterable[str], measure: Callable[[str], Mapping[str, Any]], path: Path | None
) -> int:
    """Prints what is found, as it is found, and writes it to `path`. An exit code: 1 if outputs
    differ that have to be equal."""
    results: dict[str, Mapping[str, Any]] = {}
    for name in names:
        results[name] = found = measure(name)
        print(name)
        for key, value in found.items():
            shown = f"{value:.3f}" if isinstance(value, float) else value
            print(f"    {key:28}", shown, flush=True)
        if path:
            path.write_text(json.dumps(results, indent=1))
    return 0 if all(one.get("outputs_are_equal", True) for one in results.values()) else 1
