"""Plans that are made before the last result is known give the same bits, on the real worker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny_checkpoint import write_tiny_checkpoint

from quire.executor import UniProcExecutor
from quire.llm import LLM
from quire.params import SamplingParams

RANDOM = np.random.default_rng(12)
PROMPTS = [RANDOM.integers(0, 256, length).tolist() for length in (1, 5, 16, 17, 40, 64, 75, 90)]
ANY = {"ignore_eos": True, "logprobs": 2}
PARAMS = [
    SamplingParams(temperature=0, max_tokens=30, **ANY),
    SamplingParams(temperature=1.0, seed=7, top_p=0.95, max_tokens=30, **ANY),
    SamplingParams(temperature=1.0, seed=8, max_tokens=30, stop_token_ids=list(range(40)), **ANY),
    SamplingParams(
        temperature=1.0, seed=9, max_tokens=20, min_tokens=8, stop_token_ids=list(range(90)), **ANY
    ),
    SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1, **ANY),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(params=[2, 3])
def depth(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    depth: int = request.param
    monkeypatch.setattr(UniProcExecutor, "max_plans_in_flight", depth)
    return depth


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunked": {"max_num_batched_tokens": 16, "max_num_seqs": 5},
    "preempted": {"num_gpu_blocks_override": 16},
}


def answers(llm: LLM) -> list[Any]:
    prompts = [prompt for prompt in PROMPTS for _ in PARAMS]
    outputs = llm.generate(prompts, PARAMS * len(PROMPTS), use_tqdm=False)
    llm.llm_engine.engine_core.scheduler.check_integrity()
    was_preempted = any(one.metrics and one.metrics.num_preemptions for one in outputs)
    assert was_preempted == (llm.llm_engine.engine_core.config.cache.num_blocks == 16)
    assert all(one.prompt_logprobs is not None for one in outputs[4::5])
    return [
        (one.prompt_logprobs, one.outputs[0].token_ids, one.outputs[0].logprobs,
         one.outputs[0].finish_reason, one.outputs[0].stop_reason)
        for one in outputs
    ]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_at_every_depth(
    model: str, backend: str, depth: int, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    common = {"model": model, "backend": backend, "max_model_len": 128, "num_threads": 1}
    with LLM(**common, **settings) as llm:
        assert llm.llm_engine.engine_core.executor.max_plans_in_flight == depth
        ahead = answers(llm)
        again = answers(llm)
    monkeypatch.setattr(UniProcExecutor, "max_plans_in_flight", 1)
    with LLM(**common) as llm:
        wanted = answers(llm)
    assert {one[3] for one in wanted} == {"length", "stop"}
    assert ahead == wanted
    assert again == wanted
