"""Random requests: alone, and in company with chunks, preemption and prefix hits."""

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

_VOCABULARY = 2000
_MOST = 256
"""Tokens of a request."""


class _Cases:
    """Random requests; some begin like earlier ones."""

    def __init__(self, most_tokens: int) -> None:
        self._random = np.random.default_rng(int(time.time()))
        self._most, self._earlier = most_tokens, list[list[int]]()

    def make(self) -> tuple[dict[str, Any], SamplingParams]:
        """A prompt, and how its tokens are chosen."""
        random = self._random
        length = int(random.integers(1, self._most // 2))
        prompt = random.integers(3, _VOCABULARY, length).tolist()
        if self._earlier and random.random() < 0.5:
            shared = self._earlier[int(random.integers(len(self._earlier)))]
            prompt = (shared[: int(random.integers(1, len(shared) + 1))] + prompt)[:length]
        self._earlier = [*self._earlier[-20:], prompt]
        params = SamplingParams(
            temperature=float(random.choice([0.0, 0.7, 1.2])), seed=int(random.integers(1 << 30)),
            top_p=float(random.choice([1.0, 0.9])), top_k=int(random.choice([0, 20])),
            max_tokens=int(random.integers(1, self._most // 2)), ignore_eos=True,
            logprobs=2 if random.random() < 0.5 else None,
        )  # fmt: skip
        return {"prompt_token_ids": prompt}, params


def check_sameness(device: Device, sizes: Sizes) -> Iterator[Row]:
    """Tokens and log-probabilities must have the same bits; requests without log-probabilities
    begin steps before their last token is known. The first requests are compared with
    those of an engine that computes one at a time, the others with one that has memory for all."""
    del device
    yield from guarded(sizes, "requests in company", _sameness(sizes))


def _sameness(sizes: Sizes) -> Iterator[Row]:
    most, at_once = (48, 4) if sizes.is_emulated else (_MOST, 48)
    shared = {"device": "cuda", "dtype": "bfloat16", "max_model_len": most}
    roomy = {
        **shared, "enable_prefix_caching": False, "max_num_batched_tokens": 4 * most,
        "num_gpu_blocks_override": at_once * most // 8,
    }  # fmt: skip
    company = LLM(
        max_num_seqs=at_once, max_num_batched_tokens=max(16, 2 * at_once),
        num_gpu_blocks_override=max(most // 16 + 1, at_once * most // 128), **shared,
        disable_log_stats=False,
    )  # fmt: skip
    cases, end = _Cases(most), time.monotonic() + sizes.sameness_seconds
    with closing(LLM(max_num_seqs=1, **roomy)) as alone:
        count = min(at_once, sizes.most_cases // 2)
        yield equal(
            "requests in company and alone", _differences(cases, count, company, alone), count
        )
    num_cases, different = 0, 0
    with closing(LLM(max_num_seqs=at_once, **roomy)) as other:
        while count + num_cases < sizes.most_cases and (time.monotonic() < end or not num_cases):
            more = min(at_once * 2, sizes.most_cases - num_cases - count)
            different += _differences(cases, more, company, other)
            num_cases += more
    yield equal("requests in two kinds of company", different, num_cases)
    for metric in company.llm_engine.get_metrics():
        if metric.name in ("vllm:num_preemptions", "vllm:prefix_cache_hits"):
            yield Row(metric.name.removeprefix("vllm:"), float(metric.value))
    company.close()


def _differences(cases: _Cases, count: int, company: LLM, other: LLM) -> int:
    """How many of some new requests have other bits in another engine, which gets them in reverse
    order."""
    prompts, params = map(list, zip(*(cases.make() for _ in range(count)), strict=True))
    found = _bits(company.generate(prompts, params, use_tqdm=False))
    wanted = _bits(other.generate(prompts[::-1], params[::-1], use_tqdm=False))
    return sum(one != another for one, another in zip(found, wanted[::-1], strict=True))


def _bits(outputs: list[Any]) -> list[Any]:
    return [
        (
            list(output.outputs[0].token_ids),
            [
                sorted((token, float(one.logprob).hex()) for token, one in step.items())
                for step in output.outputs[0].logprobs or ()
            ],
        )
        for output in outputs
    ]
