"""Prompts with images and videos in random company: each gets the bits that it gets alone.

Few blocks force preemption, few tokens per step divide images, images are shared between prompts,
a part of the prompts begins alike, and the encoder computes pieces of random sizes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from output_bits import Bits, bits_of
from thread_ranks import ThreadRanks
from vision_cases import CASES

Image = pytest.importorskip("PIL.Image")

from quire.backends.cpu import step_in_pieces as pieces  # noqa: E402
from quire.config.engine_args import EngineArgs  # noqa: E402
from quire.core import images as core_images  # noqa: E402
from quire.executor import multiproc  # noqa: E402
from quire.frontend.offline.llm_engine import LLMEngine  # noqa: E402
from quire.frontend.online.async_llm import AsyncLLM  # noqa: E402
from quire.models.media.families import vision_model  # noqa: E402
from quire.params import SamplingParams  # noqa: E402
from quire.planning import image_encoder as encoder  # noqa: E402
from quire.planning.plan import build_engine_config  # noqa: E402

_SIZES = ((61, 23), (20, 30), (33, 90), (48, 48))
_WORDS = ("a", "of the", "What is shown here, and where?")


@dataclass(frozen=True)
class Work:
    """A request: texts, numbers of images, and after them numbers of videos."""

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


def videos() -> list[Any]:
    rng = np.random.default_rng(5)
    return [rng.integers(0, 256, (count, 24, 40, 3)).astype(np.uint8) for count in (1, 4)]


def random_work(random: Random, *, has_videos: bool = False) -> Work:
    choices = [*range(len(_SIZES) + 2 * has_videos), *_WORDS]
    parts = ["Begin ", *(random.choice(choices) for _ in range(random.randrange(1, 4)))]
    return Work(tuple(parts), random.randrange(2**32), random.randrange(2, 12))


class Prompts:
    """Requests for one model."""

    def __init__(self, engine: LLMEngine | AsyncLLM) -> None:
        vision = vision_model(engine.model_config.hf_config)
        assert vision is not None
        self._places, self._media = [vision.placeholder] * len(_SIZES), images()
        if vision.video is not None:
            self._places += [vision.video.placeholder] * 2
            self._media += videos()

    def of(self, work: Work) -> dict[str, Any]:
        parts = [one if isinstance(one, str) else f" {self._places[one]} " for one in work.parts]
        prompt: dict[str, Any] = {"prompt": "".join(parts)}
        numbers = [one for one in work.parts if isinstance(one, int)]
        data = {
            "image": [self._media[one] for one in numbers if one < len(_SIZES)],
            "video": [self._media[one] for one in numbers if one >= len(_SIZES)],
        }
        if numbers:
            prompt["multi_modal_data"] = data
        return prompt

    def add(self, engine: LLMEngine, name: str, work: Work) -> None:
        engine.add_request(name, self.of(work), params_of(work))


def params_of(work: Work) -> SamplingParams:
    return SamplingParams(
        temperature=0.8, seed=work.seed, max_tokens=work.num_tokens, logprobs=1, ignore_eos=True,
        detokenize=False,
    )  # fmt: skip


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


def bits_alone(path: Path, works: list[Work], dtype: str) -> dict[Work, Bits]:
    alone = engine_of(path, dtype=dtype, enable_prefix_caching=False)
    prompts, known = Prompts(alone), dict[Work, Bits]()
    for work in works:
        prompts.add(alone, "x", work)
        while alone.has_unfinished_requests():
            for output in alone.step():
                if output.finished:
                    known[work] = bits_of(output)
    alone.shutdown()
    assert len(set(known.values())) == len({*works})
    return known


TIGHT: dict[str, Any] = {
    "num_gpu_blocks_override": 32, "max_num_seqs": 4, "max_num_batched_tokens": 40,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "dtype", "count"),
    [
        ("qwen3-vl", "bfloat16", 16),
        ("gemma3", "float32", 12),
        *(
            pytest.param(family, dtype, 120, marks=pytest.mark.long)
            for family in (
                "smolvlm",
                "qwen2-vl",
                "qwen2.5-vl",
                "qwen3-vl",
                "gemma3",
                "mistral3",
                "gemma4",
                "gemma4-spans",
            )
            for dtype in ("float32", "bfloat16")
        ),
    ],
)
def test_a_request_has_its_own_bits(
    family: str, dtype: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(f"{family} {dtype}")
    CASES[family](tmp_path / "model")
    works = [random_work(random, has_videos=family.startswith("qwen")) for _ in range(8)]
    known = bits_alone(tmp_path / "model", works, dtype)
    monkeypatch.setattr(encoder, "_MAX_PIECE_TOKENS", random.choice([24, 70, 2048]))
    monkeypatch.setattr(pieces, "_FEWEST_ROWS", random.choice([5, 16]))
    monkeypatch.setattr(core_images, "_ALONE_S", 0.0)
    store = {"kv_store": True, "kv_store_path": str(tmp_path / "store")}
    num_cached = 0
    for more in ({}, store, store):  # the last one finds what the one before it has stored
        chosen = [random.choice(works) for _ in range(count // 3)]
        engine = engine_of(tmp_path / "model", dtype=dtype, **TIGHT, **more)
        prompts = Prompts(engine)
        for name, output in run(engine, prompts, chosen, random).items():
            assert bits_of(output) == known[chosen[int(name)]], (name, chosen[int(name)])
            num_cached += output.num_cached_tokens or 0
        engine.shutdown()
    assert num_cached


@pytest.mark.parametrize(
    ("family", "tensor", "stages"),
    [
        ("qwen2-vl", 1, 2),
        ("qwen3-vl", 1, 2),
        ("gemma3", 2, 1),
        *(
            pytest.param(family, *split, marks=pytest.mark.long)
            for family in ("smolvlm", "qwen2.5-vl", "qwen3-vl", "gemma4", "gemma4-spans")
            for split in ((2, 1), (1, 2), (2, 2))
            if family != "gemma4" or split == (2, 1)  # its two layers share K and V: one stage
            if (family, split) != ("qwen3-vl", (1, 2))
        ),
    ],
)
def test_ranks_give_the_bits_of_one(
    family: str, tensor: int, stages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rank has the encoder."""
    monkeypatch.setattr(multiproc, "RankProcesses", ThreadRanks)
    random = Random(f"{family} {tensor} {stages}")
    CASES[family](tmp_path)
    works = [random_work(random, has_videos=family.startswith("qwen")) for _ in range(6)]
    known = bits_alone(tmp_path, works, "bfloat16")
    split = {"tensor_parallel_size": tensor, "pipeline_parallel_size": stages}
    engine = engine_of(tmp_path, dtype="bfloat16", **TIGHT, **split)
    assert engine.model_config.images
    for name, output in run(engine, Prompts(engine), works, random).items():
        assert bits_of(output) == known[works[int(name)]], name
    engine.shutdown()


async def _served(engine: AsyncLLM, prompts: Prompts, works: list[Work], random: Random) -> Any:
    """The outputs of requests that arrive at random times; None for those that are aborted."""

    async def one(number: int, work: Work) -> Any:
        await asyncio.sleep(random.random() * 0.02 * len(works))
        stream = engine.generate(prompts.of(work), params_of(work), str(number))
        leaves, last = random.random() < 0.15, None
        async for output in stream:
            last = output
            if leaves:
                await stream.aclose()
                return None
        return last

    return await asyncio.gather(*(one(*work) for work in enumerate(works)))


@pytest.mark.parametrize(
    ("family", "mode", "count"),
    [
        ("qwen2.5-vl", "process", 12),
        *(
            pytest.param(family, mode, 60, marks=pytest.mark.long)
            for family in ("smolvlm", "qwen2-vl", "qwen2.5-vl", "qwen3-vl", "gemma3", "internvl")
            for mode in ("thread", "process")
        ),
    ],
)
def test_engines_in_threads_and_processes_give_the_same_bits(
    family: str, mode: Any, count: int, tmp_path: Path
) -> None:
    random = Random(f"{family} {mode}")
    CASES[family](tmp_path / "model")
    works = [random_work(random, has_videos=family.startswith("qwen")) for _ in range(8)]
    known = bits_alone(tmp_path / "model", works, "bfloat16")
    store = {"kv_store": True, "kv_store_path": str(tmp_path / "store")}
    for has_store in (False, True, True):
        args = EngineArgs(
            str(tmp_path / "model"), backend="cpu", max_model_len=320, num_threads=2,
            dtype="bfloat16", **(store if has_store else {"kv_store": False}), **TIGHT,
        )  # fmt: skip
        chosen = [random.choice(works) for _ in range(count // 3)]

        async def session(args: EngineArgs = args, chosen: list[Work] = chosen) -> list[Any]:
            engine = AsyncLLM(build_engine_config(args), engine_mode=mode)
            try:
                return list(await _served(engine, Prompts(engine), chosen, random))
            finally:
                engine.shutdown()

        outputs = asyncio.run(session())
        assert any(outputs)
        for work, output in zip(chosen, outputs, strict=True):
            assert output is None or bits_of(output) == known[work], work
