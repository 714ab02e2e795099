"""Disks that are full, broken or slow under an engine: every request gets its own tokens, and the
bound of files holds."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from faulty_disk import FAULTS

from quire.llm import LLM
from quire.params import SamplingParams

PARAMS = SamplingParams(temperature=1.0, seed=3, max_tokens=20, ignore_eos=True)
BLOCK = 16
MOST = 40_000
"""Bytes of files: room for a few chunks, so that some have to go."""


@pytest.fixture
def prompts() -> list[list[int]]:
    """Some begin as others do, and all come twice."""
    choose = random.Random(4)
    shared = [[choose.randrange(250) for _ in range(70)] for _ in range(3)]
    texts = [[*choose.choice(shared), *(choose.randrange(250) for _ in range(9))] for _ in range(8)]
    return texts * 2


def engine(model_dir: Path, **options: Any) -> LLM:
    return LLM(
        model=str(model_dir), max_model_len=128, num_threads=1, block_size=BLOCK,
        num_gpu_blocks_override=128 // BLOCK, **options,
    )  # fmt: skip


def tokens(llm: LLM, prompt: list[int]) -> list[int]:
    [reply] = llm.generate([{"prompt_token_ids": prompt}], PARAMS, use_tqdm=False)
    return [*reply.outputs[0].token_ids]


def num_bytes(directory: Path) -> int:
    total = 0
    for file in list(directory.rglob("*.kv")):
        with suppress(FileNotFoundError):  # it has made room for another one
            total += file.stat().st_size
    return total


@pytest.mark.sweep(2)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_disk_fails_nothing(
    fault: str,
    model_dir: Path,
    prompts: list[list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with engine(model_dir, kv_store=False) as llm:
        wanted = [tokens(llm, prompt) for prompt in prompts]
    for name, around in FAULTS[fault].items():
        monkeypatch.setattr(os, name, around(getattr(os, name)))
    for _ in range(2):
        with engine(model_dir, kv_store_path=str(tmp_path / "kv"), kv_store_size=MOST) as llm:
            assert [tokens(llm, prompt) for prompt in prompts] == wanted
            assert num_bytes(tmp_path / "kv") <= MOST
