"""Disks that are full, broken or slow under an engine: every request gets its own tokens, and the
bound of files holds."""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoint import write_tiny_checkpoint

from quire.llm import LLM
from quire.params import SamplingParams

PARAMS = SamplingParams(temperature=1.0, seed=3, max_tokens=20, ignore_eos=True)
BLOCK = 16
MOST = 40_000
"""Bytes of files: room for a few chunks, so that some have to go."""

Vectored = Callable[[int, Sequence[memoryview], int], int]


def failing(code: int, chance: float) -> Callable[[Vectored], Vectored]:
    """Calls of the system that fail at times."""
    choose = random.Random(5)

    def around(call: Vectored) -> Vectored:
        def fails(descriptor: int, views: Sequence[memoryview], offset: int) -> int:
            if choose.random() < chance:
                raise OSError(code, os.strerror(code))
            return call(descriptor, views, offset)

        return fails

    return around


def slow(bytes_per_s: float) -> Callable[[Vectored], Vectored]:
    """Calls that take as long as on a disk of that speed."""

    def around(call: Vectored) -> Vectored:
        def sleeps(descriptor: int, views: Sequence[memoryview], offset: int) -> int:
            time.sleep(sum(view.nbytes for view in views) / bytes_per_s)
            return call(descriptor, views, offset)

        return sleeps

    return around


FAULTS: dict[str, dict[str, Callable[[Vectored], Vectored]]] = {
    "full": {"pwritev": failing(errno.ENOSPC, 1.0)},
    "full at times": {"pwritev": failing(errno.ENOSPC, 0.3)},
    "broken": {"pwritev": failing(errno.EIO, 0.3), "preadv": failing(errno.EIO, 0.3)},
    "unreadable": {"preadv": failing(errno.EIO, 1.0)},
    "10 MB/s": {"pwritev": slow(10e6), "preadv": slow(10e6)},
    "10 kB/s": {"pwritev": slow(10e3), "preadv": slow(10e3)},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def prompts() -> list[list[int]]:
    """Some begin as others do, and all come twice."""
    choose = random.Random(4)
    shared = [[choose.randrange(250) for _ in range(70)] for _ in range(3)]
    texts = [[*choose.choice(shared), *(choose.randrange(250) for _ in range(9))] for _ in range(8)]
    return texts * 2


def engine(model: str, **options: Any) -> LLM:
    return LLM(
        model=model, max_model_len=128, num_threads=1, block_size=BLOCK,
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


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_disk_fails_nothing(
    fault: str,
    model: str,
    prompts: list[list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with engine(model, kv_store=False) as llm:
        wanted = [tokens(llm, prompt) for prompt in prompts]
    for name, around in FAULTS[fault].items():
        monkeypatch.setattr(os, name, around(getattr(os, name)))
    for _ in range(2):
        with engine(model, kv_store_path=str(tmp_path / "kv"), kv_store_size=MOST) as llm:
            assert [tokens(llm, prompt) for prompt in prompts] == wanted
            assert num_bytes(tmp_path / "kv") <= MOST
