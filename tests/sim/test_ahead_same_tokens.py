"""Plans that are made before the last result is known give the same bits, on the real worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.backends.base import StepBatch, StepOutput
from quire.config.engine_args import EngineArgs
from quire.core.engine_core import EngineCore
from quire.errors import BackendError
from quire.executor import UniProcExecutor
from quire.llm import LLM
from quire.params import SamplingParams
from quire.planning.plan import build_engine_config
from quire.protocol import EngineCoreRequest

RANDOM = np.random.default_rng(12)
PROMPTS = [RANDOM.integers(0, 256, length).tolist() for length in (1, 5, 16, 17, 40, 64, 75, 90)]
ANY = {"ignore_eos": True}
PARAMS = [
    SamplingParams(temperature=0, max_tokens=30, logprobs=2, **ANY),
    SamplingParams(temperature=1.0, seed=7, top_p=0.95, max_tokens=30, **ANY),
    SamplingParams(temperature=1.0, seed=8, max_tokens=30, stop_token_ids=list(range(40)), **ANY),
    SamplingParams(
        temperature=1.0, seed=9, max_tokens=20, min_tokens=8, stop_token_ids=list(range(90)), **ANY
    ),
    SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1, **ANY),
]


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


@pytest.fixture(scope="module")
def common(model_dir: Path, backend: str) -> dict[str, Any]:
    return {"model": str(model_dir), "backend": backend, "max_model_len": 128, "num_threads": 1}


@pytest.fixture(scope="module")
def wanted(common: dict[str, Any]) -> list[Any]:
    """What an engine gives that makes no plan ahead."""
    with LLM(**common) as llm:
        assert llm.llm_engine.engine_core.executor.max_plans_in_flight == 1
        return answers(llm)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_at_every_depth(
    common: dict[str, Any], wanted: list[Any], depth: int, settings: dict[str, Any]
) -> None:
    with LLM(**common, **settings) as llm:
        assert llm.llm_engine.engine_core.executor.max_plans_in_flight == depth
        ahead = answers(llm)
        again = answers(llm)
    assert {one[3] for one in wanted} == {"length", "stop"}
    assert ahead == wanted
    assert again == wanted


def tokens_of(core: EngineCore, wanted: dict[str, list[int]]) -> dict[str, Any]:
    """What each request gets, or the error that ends it; a request comes with each step."""
    found: dict[str, Any] = {}
    left = list(wanted.items())
    while left or core.has_unfinished_requests():
        if left:
            request_id, prompt = left.pop(0)
            found[request_id] = []
            core.add_request(
                EngineCoreRequest(
                    request_id=request_id,
                    prompt_token_ids=prompt,
                    sampling_params=SamplingParams(temperature=0, seed=0, max_tokens=12),
                    arrival_time=0.0,
                )
            )
        for output in core.step().outputs:
            found[output.request_id] += output.new_token_ids
            if output.error is not None:
                found[output.request_id] = output.error
        core.scheduler.check_integrity()
    return found


SHARING = {str(number): [*PROMPTS[-1][:70], number] for number in range(4)}
"""Prompts with the same prefix."""


def new_core(common: dict[str, Any]) -> EngineCore:
    return EngineCore(build_engine_config(EngineArgs(**common, max_num_batched_tokens=48)))


@pytest.fixture(scope="module")
def wanted_of_sharing(common: dict[str, Any]) -> dict[str, Any]:
    """What they get where no step fails."""
    core = new_core(common)
    found = tokens_of(core, SHARING)
    core.shutdown()
    return found


@pytest.mark.parametrize("failing", [1, 2, 3, 5, 8])
def test_a_step_that_fails_changes_no_other_answer(
    common: dict[str, Any],
    wanted_of_sharing: dict[str, Any],
    depth: int,
    failing: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = new_core(common)
    assert isinstance(core.executor, UniProcExecutor)
    assert core.executor.max_plans_in_flight == depth
    compiled = core.executor._worker.model
    step, calls = compiled.step, []

    def fails_once(batch: StepBatch) -> StepOutput:
        calls.append(batch)
        if len(calls) == failing:
            raise BackendError("on purpose")
        return step(batch)

    monkeypatch.setattr(compiled, "step", fails_once)
    found = tokens_of(core, SHARING)
    core.shutdown()
    failed = {one for one, answer in found.items() if answer == "the step failed: on purpose"}
    assert failed
    assert failed != found.keys() or failing > 4
    assert {one: found[one] for one in found if one not in failed} == {
        one: tokens for one, tokens in wanted_of_sharing.items() if one not in failed
    }
