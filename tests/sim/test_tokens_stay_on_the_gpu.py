"""The engine on an emulated GPU begins steps before it has the last tokens, and gives the tokens
that it gives one step at a time."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.backends.cuda import backend
from quire.backends.cuda.emulated import EmulatedDevice
from quire.backends.cuda.model import CudaModel
from quire.errors import BackendError
from quire.executor import UniProcExecutor
from quire.llm import LLM
from quire.params import SamplingParams
from quire.scheduler.states import RequestStates

RANDOM = np.random.default_rng(5)
PROMPTS = [RANDOM.integers(0, 256, n).tolist() for n in (1, 5, 17, 40, 64, 33, 12, 3)]
ANY = {"ignore_eos": True}
PARAMS = [
    SamplingParams(temperature=0, max_tokens=14, **ANY),
    SamplingParams(temperature=1.0, seed=7, top_p=0.9, max_tokens=14, **ANY),
    SamplingParams(temperature=1.0, seed=8, max_tokens=14, stop_token_ids=list(range(60)), **ANY),
    SamplingParams(
        temperature=1.0, seed=9, max_tokens=14, min_tokens=6, stop_token_ids=list(range(90)), **ANY
    ),
    SamplingParams(temperature=1.0, seed=3, max_tokens=9, presence_penalty=0.8, **ANY),
    SamplingParams(temperature=0.8, seed=4, max_tokens=9, logprobs=2, **ANY),
    SamplingParams(temperature=0.8, seed=4, max_tokens=9, logit_bias={5: 3.0}, top_k=9, **ANY),
    SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=1, **ANY),
]
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunked": {"max_num_batched_tokens": 16, "max_num_seqs": 5},
    "preempted": {"num_gpu_blocks_override": 10},
    "eager": {"enforce_eager": True},
}


@pytest.fixture
def common(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """On a device that computes only when the host waits."""
    monkeypatch.setattr(backend, "open_device", lambda _: EmulatedDevice(is_lazy=True))
    return {
        "model": str(model_dir), "device": "cuda", "dtype": "float32", "max_model_len": 96,
        "max_num_seqs": 8, "num_gpu_blocks_override": 64,
    }  # fmt: skip


def executor_of(llm: LLM) -> UniProcExecutor:
    executor = llm.llm_engine.engine_core.executor
    assert isinstance(executor, UniProcExecutor)
    return executor


def answers(llm: LLM) -> list[Any]:
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    llm.llm_engine.engine_core.scheduler.check_integrity()
    return [
        (one.outputs[0].token_ids, one.outputs[0].logprobs, one.prompt_logprobs,
         one.outputs[0].finish_reason)
        for one in outputs
    ]  # fmt: skip


@pytest.fixture
def wanted(common: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    with monkeypatch.context() as patched:
        patched.setattr(CudaModel, "keeps_tokens", False)
        with closing(LLM(**common, enforce_eager=True)) as llm:
            assert executor_of(llm).max_plans_in_flight == 1
            return answers(llm)


def test_the_tokens_are_the_same(common: dict[str, Any], wanted: list[Any]) -> None:
    assert {one[3] for one in wanted} == {"length", "stop"}
    for name, settings in SETTINGS.items():
        with closing(LLM(**{**common, **settings})) as llm:
            assert executor_of(llm).max_plans_in_flight == 2
            assert answers(llm) == wanted, name
            assert answers(llm) == wanted, name


def test_preempted_requests_swap_with_the_host(
    common: dict[str, Any], wanted: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their K and V go to the host's memory, and come back."""
    write, num_written = CudaModel.write_blocks, []

    def written(self: CudaModel, block_ids: Any, data: Any) -> None:
        num_written.append(len(block_ids))
        write(self, block_ids, data)

    monkeypatch.setattr(CudaModel, "write_blocks", written)
    swap: dict[str, Any] = {"kv_store": True, "kv_store_size": 0, "kv_store_memory": 1 << 26}
    preempt, preempted = RequestStates.preempt, []

    def seen(self: RequestStates, request: Any) -> None:
        preempted.append(request)
        preempt(self, request)

    monkeypatch.setattr(RequestStates, "preempt", seen)
    with closing(LLM(**{**common, **swap, "num_gpu_blocks_override": 10})) as llm:
        for _ in range(3):
            assert answers(llm) == wanted
    assert preempted
    assert sum(num_written) > 0


def test_steps_begin_before_the_last_one_is_collected(
    common: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a request that generates, each step but the first begins with a token of the device. One
    with a penalty waits for its tokens."""
    fed: list[bool] = []
    submit = CudaModel.submit

    def seen(self: CudaModel, batch: Any) -> Any:
        fed.append(batch.token_places is not None and bool((batch.token_places >= 0).any()))
        return submit(self, batch)

    monkeypatch.setattr(CudaModel, "submit", seen)
    with closing(LLM(**common)) as llm:
        llm.generate([PROMPTS[1]], PARAMS[0], use_tqdm=False)
        assert fed == [False] + [True] * 13
        fed.clear()
        llm.generate([PROMPTS[1]], PARAMS[4], use_tqdm=False)
        assert fed == [False] * 9


def test_a_step_that_fails_ends_its_requests_alone(
    common: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, calls = CudaModel.submit, []

    def fails_once(self: CudaModel, batch: Any) -> Any:
        calls.append(batch)
        if len(calls) == 4:
            raise BackendError("on purpose")
        return submit(self, batch)

    with closing(LLM(**common)) as llm:
        wanted = llm.generate([PROMPTS[2]], PARAMS[0], use_tqdm=False)[0].outputs[0].token_ids
        monkeypatch.setattr(CudaModel, "submit", fails_once)
        [failed] = llm.generate([PROMPTS[1]], PARAMS[0], use_tqdm=False)
        assert failed.outputs[0].finish_reason == "error"
        again = llm.generate([PROMPTS[2]], PARAMS[0], use_tqdm=False)[0].outputs[0].token_ids
        llm.llm_engine.engine_core.scheduler.check_integrity()
    assert again == wanted
