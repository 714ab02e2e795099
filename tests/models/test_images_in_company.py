"""Prompts with images in random company: each gets the bits that it gets alone.

Few blocks force preemption, few tokens per step divide images, images are shared between prompts,
and a part of the prompts begins alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from vision_cases import CASES

Image = pytest.importorskip("PIL.Image")

from quire.config.engine_args import EngineArgs  # noqa: E402
from quire.frontend.offline.llm_engine import LLMEngine  # noqa: E402
from quire.models.vision.families import vision_model  # noqa: E402
from quire.outputs import RequestOutput  # noqa: E402
from quire.params import SamplingParams  # noqa: E402

Bits = tuple[tuple[int, ...], tuple[float, ...]]
_SIZES = ((61, 23), (20, 30), (33, 90), (48, 48))
_WORDS = ("a", "of the", "What is shown here, and where?")


@dataclass(frozen=True)
class Work:
    """A request: texts, and numbers of images."""

    parts: tuple[str | int, ...]
    seed: int
    num_tokens: int


def images() -> list[Any]:
    rng = np.random.default_rng(4)
    return [Image.fromarray(rng.integers(0, 256, (*size, 3)).astype(np.uint8)) for size in _SIZES]


def engine_of(path: Path, **options: Any) -> LLMEngine:
    return LLMEngine.from_engine_args(
        EngineArgs(
            str(path), backend="cpu", max_model_len=320, disable_log_stats=True, num_threads=2,
            **{"kv_store": False, **options},
        )
    )  # fmt: skip


def random_work(random: Random) -> Work:
    choices = [*range(len(_SIZES)), *_WORDS]
    parts = ["Begin ", *(random.choice(choices) for _ in range(random.randrange(1, 4)))]
    return Work(tuple(parts), random.randrange(2**32), random.randrange(2, 12))


class Prompts:
    """Requests for one model."""

    def __init__(self, engine: LLMEngine) -> None:
        vision = vision_model(engine.model_config.hf_config)
        assert vision is not None
        self._place, self._images = vision.placeholder, images()

    def add(self, engine: LLMEngine, name: str, work: Work) -> None:
        text = "".join(one if isinstance(one, str) else f" {self._place} " for one in work.parts)
        prompt: dict[str, Any] = {"prompt": text}
        given = [self._images[one] for one in work.parts if isinstance(one, int)]
        if given:
            prompt["multi_modal_data"] = {"image": given}
        params = SamplingParams(
            temperature=0.8, seed=work.seed, max_tokens=work.num_tokens, logprobs=1,
            ignore_eos=True, detokenize=False,
        )  # fmt: skip
        engine.add_request(name, prompt, params)


def bits_of(output: Any) -> Bits:
    assert isinstance(output, RequestOutput)
    assert output.error is None
    [one] = output.outputs
    assert one.logprobs is not None
    return tuple(one.token_ids), tuple(
        entry[token].logprob for token, entry in zip(one.token_ids, one.logprobs, strict=True)
    )


def run(engine: LLMEngine, prompts: Prompts, works: list[Work], random: Random) -> dict[str, Any]:
    """The outputs of requests that arrive at random times."""
    found, number = dict[str, Any](), 0
    while number < len(works) or engine.has_unfinished_requests():
        if number < len(works) and random.random() < 0.7:
            prompts.add(engine, str(number), works[number])
            number += 1
        for output in engine.step():
            if output.finished:
                found[output.request_id] = output
    return found


@pytest.mark.parametrize(
    ("family", "dtype", "count"),
    [
        ("qwen3-vl", "bfloat16", 16),
        ("gemma3", "float32", 12),
        *(
            pytest.param(family, dtype, 120, marks=pytest.mark.long)
            for family in ("smolvlm", "qwen2-vl", "qwen2.5-vl", "qwen3-vl", "gemma3", "mistral3")
            for dtype in ("float32", "bfloat16")
        ),
    ],
)
def test_a_request_has_its_own_bits(family: str, dtype: str, count: int, tmp_path: Path) -> None:
    random = Random(f"{family} {dtype}")
    CASES[family](tmp_path / "model")
    works = [random_work(random) for _ in range(8)]
    alone = engine_of(tmp_path / "model", dtype=dtype, enable_prefix_caching=False)
    prompts, known = Prompts(alone), dict[Work, Bits]()
    for work in works:
        prompts.add(alone, "x", work)
        while alone.has_unfinished_requests():
            for output in alone.step():
                if output.finished:
                    known[work] = bits_of(output)
    alone.shutdown()
    options: dict[str, Any] = {
        "dtype": dtype, "num_gpu_blocks_override": 32, "max_num_seqs": 4,
        "max_num_batched_tokens": 40,
    }  # fmt: skip
    store = {"kv_store": True, "kv_store_path": str(tmp_path / "store")}
    num_cached = 0
    for more in ({}, store, store):  # the last one finds what the one before it has stored
        chosen = [random.choice(works) for _ in range(count // 3)]
        engine = engine_of(tmp_path / "model", **options, **more)
        for name, output in run(engine, prompts, chosen, random).items():
            assert bits_of(output) == known[chosen[int(name)]], (name, chosen[int(name)])
            num_cached += output.num_cached_tokens or 0
        engine.shutdown()
    assert num_cached
    assert len(set(known.values())) == len({*works})
