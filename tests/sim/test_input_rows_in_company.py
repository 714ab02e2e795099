"""Prompts of tokens and given rows in random company: each gets the bits that it gets alone.

The rows stand at equal placeholder ids, so that a prefix hit on other rows would change the bits.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from output_bits import Bits, bits_of
from tiny_checkpoint import CONFIG, write_tiny_checkpoint

from quire import LLM
from quire.config.engine_args import EngineArgs
from quire.frontend.offline.llm_engine import LLMEngine
from quire.inputs import EmbedsPrompt
from quire.params import SamplingParams

WIDTH = CONFIG["hidden_size"]
NUM_PICTURES = 3
"""Arrays of rows that prompts choose from."""


@dataclass(frozen=True)
class Work:
    """A request: runs of token ids, and numbers of pictures."""

    parts: tuple[tuple[int, ...] | int, ...]
    seed: int
    num_tokens: int


def pictures() -> list[NDArray[np.float32]]:
    random = np.random.default_rng(5)
    return [
        random.standard_normal((9 + 5 * (i % 2), WIDTH), np.float32) for i in range(NUM_PICTURES)
    ]


def prompt_of(work: Work, rows: list[NDArray[np.float32]]) -> EmbedsPrompt:
    ids: list[int] = []
    mask: list[bool] = []
    arrays = []
    for part in work.parts:
        is_picture = isinstance(part, int)
        given = rows[part] if is_picture else np.zeros((len(part), WIDTH), np.float32)  # type: ignore[arg-type,index]
        ids += [7] * len(given) if is_picture else part  # type: ignore[arg-type,operator]
        mask += [not is_picture] * len(given)
        arrays.append(given)
    return EmbedsPrompt(
        prompt_embeds=np.concatenate(arrays), prompt_token_ids=ids, prompt_is_token_ids=mask
    )


def engine_of(base: Path, **options: Any) -> LLMEngine:
    return LLMEngine.from_engine_args(
        EngineArgs(
            str(base), enable_prompt_embeds=True, kv_store=False, max_model_len=160,
            disable_log_stats=True, skip_tokenizer_init=True, num_threads=2, **options,
        )
    )  # fmt: skip


def params_of(work: Work) -> SamplingParams:
    return SamplingParams(
        temperature=0.8, seed=work.seed, max_tokens=work.num_tokens, logprobs=1, ignore_eos=True,
        repetition_penalty=1.1, detokenize=False,
    )  # fmt: skip


def random_work(random: Random) -> Work:
    words = [tuple(random.randrange(256) for _ in range(n)) for n in (1, 6, 17)]
    parts = [random.choice([*range(NUM_PICTURES), *words]) for _ in range(random.randrange(1, 6))]
    return Work(tuple(parts), random.randrange(2**32), random.randrange(2, 14))


@pytest.mark.parametrize(
    ("formats", "count"),
    [
        ({"dtype": "float32"}, 40),
        ({"dtype": "bfloat16", "quantization": "int8"}, 30),
        pytest.param({"dtype": "float32"}, 600, marks=pytest.mark.long),
        pytest.param({"dtype": "bfloat16"}, 600, marks=pytest.mark.long),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else str(value),
)
def test_a_request_has_its_own_bits(formats: dict[str, str], count: int, tmp_path: Path) -> None:
    seed = int(os.environ.get("QUIRE_TEST_SEED", "7"))
    random, rows = Random(seed), pictures()
    base = write_tiny_checkpoint(tmp_path / "base")
    works = [random_work(random) for _ in range(12)]
    alone = engine_of(base, enable_prefix_caching=False, **formats)
    known: dict[Work, Bits] = {}
    for work in works:
        alone.add_request("x", prompt_of(work, rows), params_of(work))
        while alone.has_unfinished_requests():
            for output in alone.step():
                if output.finished:
                    known[work] = bits_of(output)  # type: ignore[arg-type]
    alone.shutdown()
    engine = engine_of(
        base, num_gpu_blocks_override=24, max_num_seqs=6, max_num_batched_tokens=40, **formats
    )
    running: dict[str, Work] = {}
    num_added = num_cached = 0
    while num_added < count or engine.has_unfinished_requests():
        if num_added < count and random.random() < 0.7:
            work, name, num_added = random.choice(works), str(num_added), num_added + 1
            running[name] = work
            engine.add_request(name, prompt_of(work, rows), params_of(work))
        for output in engine.step():
            if output.finished:
                assert bits_of(output) == known[running.pop(output.request_id)], seed  # type: ignore[arg-type]
                num_cached += output.num_cached_tokens or 0  # type: ignore[union-attr]
    assert not running
    assert num_cached, "equal rows never hit the prefix cache"
    assert len(set(known.values())) == len({*works})
    engine.shutdown()


def test_stored_kv_of_rows_is_found_after_a_restart(tmp_path: Path) -> None:
    """By the process engine too, to which the rows travel; other rows find nothing."""
    base, rows = write_tiny_checkpoint(tmp_path / "base"), pictures()
    settings: dict[str, Any] = {
        "model": str(base), "enable_prompt_embeds": True, "dtype": "float32", "num_threads": 2,
        "skip_tokenizer_init": True, "kv_store": True, "kv_store_path": str(tmp_path / "store"),
    }  # fmt: skip
    work = Work((tuple(range(20)), 0, tuple(range(9)), 1), 3, 6)
    other = Work((tuple(range(20)), 2, tuple(range(9)), 1), 3, 6)
    found = []
    for _ in range(2):
        with LLM(**settings) as llm:
            prompts = [prompt_of(work, rows), prompt_of(other, rows)]
            found.append(llm.generate(prompts[:1], params_of(work), use_tqdm=False)[0])
            if len(found) == 2:
                found.append(llm.generate(prompts[1:], params_of(work), use_tqdm=False)[0])
    assert bits_of(found[0]) == bits_of(found[1]) != bits_of(found[2])
    assert (found[1].num_cached_tokens, found[2].num_cached_tokens) == (48, 16)
