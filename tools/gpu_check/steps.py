"""Steps without the host between them: recorded steps and steps that begin ahead give the same
tokens, and what they save."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
from tools.gpu_check.guard import guarded
from tools.gpu_check.parts import Sizes
from tools.gpu_check.report import Row, equal

from quire import LLM, SamplingParams
from quire.backends.cuda.device import Device
from quire.backends.cuda.model import CudaModel
from quire.executor import UniProcExecutor

_WAYS: dict[str, dict[str, Any]] = {
    "launched one by one, awaited": {"enforce_eager": True, "is_awaited": True},
    "launched one by one, ahead": {"enforce_eager": True},
    "recorded, awaited": {"is_awaited": True},
    "recorded, ahead": {},
}
_PROMPT = 32
_VOCABULARY = 60


def check_steps(device: Device, sizes: Sizes) -> Iterator[Row]:
    """The bundled model, with random requests of several lengths."""
    del device
    found: dict[str, list[Any]] = {}
    for way in _WAYS:
        yield from guarded(sizes, way, _one_way(sizes, way, found))


def _one_way(sizes: Sizes, way: str, found: dict[str, list[Any]]) -> Iterator[Row]:
    count, given = max(sizes.requests[:-1]), _WAYS[way]
    CudaModel.keeps_tokens = not given.get("is_awaited", False)
    with closing(_engine(sizes, count, enforce_eager=given.get("enforce_eager", False))) as llm:
        executor = llm.llm_engine.engine_core.executor
        if not isinstance(executor, UniProcExecutor):
            raise TypeError("the engine is not in this process")
        _answers(llm, count, 2 * sizes.new_tokens)  # loads kernels, and records steps
        begin = time.perf_counter()
        found[way] = _answers(llm, count, sizes.new_tokens)
        seconds = time.perf_counter() - begin
    yield Row(f"a step of {count}, {way}", 1e3 * seconds / sizes.new_tokens, "ms")
    if len(found) == 1 and way != next(iter(_WAYS)):
        yield Row(f"requests, {way}", "nothing to compare with: earlier ways have failed")
        return
    first = next(iter(found.values()))
    different = sum(a != b for a, b in zip(found[way], first, strict=True))
    yield equal(f"requests, {way}", different, count)


def _engine(sizes: Sizes, count: int, *, enforce_eager: bool) -> LLM:
    return LLM(
        "demo", device="cuda", dtype="bfloat16", max_model_len=_PROMPT + 2 * sizes.new_tokens + 16,
        max_num_seqs=count, max_num_batched_tokens=max(count, _PROMPT), enforce_eager=enforce_eager,
        enable_prefix_caching=False, num_gpu_blocks_override=16 * count,
    )  # fmt: skip


def _answers(llm: LLM, count: int, new_tokens: int) -> list[list[int]]:
    random = np.random.default_rng(4)
    prompts = [
        {"prompt_token_ids": random.integers(3, _VOCABULARY, 1 + i % _PROMPT).tolist()}
        for i in range(count)
    ]
    params = [
        SamplingParams(
            temperature=0.9 * (i % 2), seed=i, top_p=1 - 0.2 * (i % 3),
            max_tokens=new_tokens - i % 2,
            ignore_eos=True,
        )
        for i in range(count)
    ]  # fmt: skip
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]
