"""A model that is divided among two GPUs: equal bits, and its speed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from tools.gpu_check.guard import guarded
from tools.gpu_check.parts import Sizes
from tools.gpu_check.report import Row, equal

from quire import LLM, SamplingParams
from quire.backends.cuda.device import Device
from quire.backends.cuda.nccl import load_library
from quire.backends.cuda.self_check import num_gpus
from quire.errors import BackendError


def check_ranks(device: Device, sizes: Sizes) -> Iterator[Row]:
    """The tokens of one rank and of two."""
    del device
    why_not = _why_not(sizes)
    if why_not:
        yield Row("two ranks", f"left out: {why_not}")
        return
    yield from guarded(sizes, "two ranks", _two(sizes))


def _two(sizes: Sizes) -> Iterator[Row]:
    prompts = [{"prompt_token_ids": list(range(3, 3 + n))} for n in (5, sizes.prompt // 2, 9)]
    params = [
        SamplingParams(temperature=t, seed=1, max_tokens=sizes.new_tokens, ignore_eos=True)
        for t in (0.0, 0.8, 1.2)
    ]
    found: list[Any] = []
    for count in (1, 2):
        with closing(
            LLM(
                "demo", device="cuda", dtype="bfloat16", tensor_parallel_size=count,
                max_model_len=sizes.prompt + sizes.new_tokens, gpu_memory_utilization=0.5,
                **({"num_gpu_blocks_override": 64} if sizes.is_emulated else {}),
            )
        ) as llm:  # fmt: skip
            llm.generate(prompts, params, use_tqdm=False)
            begin = time.perf_counter()
            outputs = llm.generate(prompts, params, use_tqdm=False)
            seconds = time.perf_counter() - begin
        found.append([list(one.outputs[0].token_ids) for one in outputs])
        tokens = len(prompts) * sizes.new_tokens
        yield Row(f"demo model on {count} GPU{'s' * (count > 1)}", tokens / seconds, "tokens/s")
    different = sum(one != other for one, other in zip(*found, strict=True))
    yield equal("requests on two GPUs and on one", different, len(prompts))


def _why_not(sizes: Sizes) -> str:
    """Why two ranks cannot be had here; "" if they can."""
    if sizes.is_emulated:
        return ""
    if (count := num_gpus()) < 2:
        return f"CUDA sees {count} GPU"
    try:
        load_library()
    except BackendError as error:
        return str(error)
    return ""
