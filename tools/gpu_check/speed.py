"""Speed of whole models through the engine, and the time outside their kernels."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
from tools.gpu_check.guard import guarded
from tools.gpu_check.parts import Sizes
from tools.gpu_check.profile import Profile
from tools.gpu_check.report import Row, share
from tools.gpu_check.shapes import model_folder, shape_of, upload_random

from quire import LLM, SamplingParams
from quire.backends.cuda.device import Device
from quire.backends.cuda.plan import Plan

_PROMPT = 128
_VOCABULARY = 60
"""Prompts have ids below it, which all shapes have."""


def check_demo(device: Device, sizes: Sizes) -> Iterator[Row]:
    """The bundled model, with its weights."""
    yield from _check(device, sizes, "demo", {})


def check_8b(device: Device, sizes: Sizes) -> Iterator[Row]:
    """A shape of 8 billion weights; they are random and copied on the device."""
    Plan.upload_weights = upload_random  # type: ignore[method-assign]
    config = shape_of(is_emulated=sizes.is_emulated)
    given = {"load_format": "dummy", "skip_tokenizer_init": True}
    with model_folder(config) as folder:
        yield from _check(device, sizes, folder, given)


def _check(device: Device, sizes: Sizes, model: str, given: dict[str, Any]) -> Iterator[Row]:
    steps: dict[int, float] = {}
    yield from guarded(sizes, "the engine", _engine_rows(sizes, model, given, steps))
    context = min(_PROMPT, sizes.prompt) + sizes.new_tokens // 2
    yield from guarded(sizes, "kernels", _outside(device, sizes, model, steps, context))


def _engine_rows(
    sizes: Sizes, model: str, given: dict[str, Any], steps: dict[int, float]
) -> Iterator[Row]:
    """Speed as users see it. Adds the seconds of a step to `steps`, by the number of requests."""
    prompt = min(_PROMPT, sizes.prompt)
    llm = LLM(
        model, device="cuda", dtype="bfloat16", max_model_len=sizes.prompt + 16,
        max_num_seqs=max(sizes.requests), max_num_batched_tokens=sizes.prompt,
        enable_prefix_caching=False, gpu_memory_utilization=0.6, **given,
        **({"num_gpu_blocks_override": 64} if sizes.is_emulated else {}),
    )  # fmt: skip
    with closing(llm):
        timer = _Timer(llm)
        timer.seconds(1, prompt, 1)
        begin = float(os.environ.get("QUIRE_CHECK_BEGIN", "nan"))
        if begin == begin:
            yield Row("from the start to the first token", time.time() - begin, "s")
        first = timer.seconds(1, prompt, 1)
        yield Row(f"first token after a prompt of {prompt}", 1e3 * first, "ms")
        first = timer.seconds(1, sizes.prompt, 1)
        yield Row(f"first token after a prompt of {sizes.prompt}", 1e3 * first, "ms")
        yield Row(f"prompt of {sizes.prompt}", sizes.prompt / first, "tokens/s")
        for count in sizes.requests:
            prompts = timer.seconds(count, prompt, 1)
            all_steps = timer.seconds(count, prompt, 1 + sizes.new_tokens)
            steps[count] = max(1e-9, all_steps - prompts) / sizes.new_tokens
            yield Row(f"{_requests(count)}, generating", count / steps[count], "tokens/s")


def _outside(
    device: Device, sizes: Sizes, model: str, steps: dict[int, float], context: int
) -> Iterator[Row]:
    """The time of the same steps' kernels alone, and the bound by bandwidth."""
    if not steps:
        yield Row("kernels", "left out: the engine has computed no steps")
        return
    peak = device.facts.bytes_per_second
    profile = Profile(device, model, max(steps), context, sizes.prompt)
    for count, seconds in steps.items():
        times = profile.decode(count, sizes.least_seconds)
        name = _requests(count)
        yield Row(f"{name}, a step", 1e3 * seconds, "ms")
        yield Row(f"{name}, its {times.num_launches} kernels", 1e3 * times.of_step, "ms")
        if sizes.is_emulated:
            continue
        outside = 1 - times.of_step / seconds
        yield share(f"{name}, outside kernels", outside, 0.05, least=False)
        if peak and count <= 32:
            bound = (times.work.weight_bytes + times.work.kv_bytes) / peak
            yield share(f"{name}, of the bandwidth's bound", bound / seconds, 0.8)
    profile.close()


def _requests(count: int) -> str:
    return f"{count} request{'s' * (count > 1)}"


class _Timer:
    """Times calls of `generate`."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._random = np.random.default_rng(0)

    def seconds(self, count: int, prompt: int, new_tokens: int) -> float:
        """So many requests with random prompts."""
        prompts = [
            {"prompt_token_ids": self._random.integers(3, _VOCABULARY, prompt).tolist()}
            for _ in range(count)
        ]
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        begin = time.perf_counter()
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        elapsed = time.perf_counter() - begin
        made = sum(len(output.outputs[0].token_ids) for output in outputs)
        if made != count * new_tokens:
            raise ValueError(f"{made} tokens were generated and not {count * new_tokens}")
        return elapsed
