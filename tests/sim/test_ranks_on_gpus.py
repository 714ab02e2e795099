"""Ranks on emulated GPUs give the tokens and log-probabilities of one GPU, bit for bit, for random
models, formats, splits and requests, with company, chunks and preemption."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from adapter_writer import PROJECTIONS, write_adapter
from executor_plans import config_of
from rank_cases import FAMILIES, Case, case_of, check, engine_of_ranks, run
from sweeps import seed as sweep_seed
from tiny_checkpoint import write_tiny_checkpoint

from quire import LLM, SamplingParams
from quire.adapters import LoRARequest
from quire.backends.base import StepBatch
from quire.backends.cuda.model import CudaModel
from quire.core.engine_core import EngineCore
from quire.protocol import EngineCoreRequest


@pytest.fixture(autouse=True)
def _emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_CUDA_EMULATED", "1")


def on_gpus(seed: str) -> Case:
    """Some requests have no log-probabilities, so that the device chooses their tokens."""
    case, rng = case_of(seed), random.Random(seed)
    requests = []
    for step, request in case.requests[:4]:
        if rng.random() < 0.5:
            request.sampling_params.logprobs = None
        requests.append((step, request))
    split = {"tensor_parallel_size": rng.choice([2, 2, 3, 4])}
    given = {**case.given, "backend": "cuda"}
    if given["kv_cache_dtype"] == "int4":  # which GPUs do not compute
        given["kv_cache_dtype"] = "int8"
    return replace(case, given=given, split=split, requests=requests)


def model_of(case: Case, folder: Path) -> Path:
    return write_tiny_checkpoint(folder / case.family, **FAMILIES[case.family])


@pytest.mark.parametrize("number", range(3))
def test_ranks_give_the_bits_of_one(tmp_path: Path, number: int) -> None:
    case = on_gpus(f"{sweep_seed()} gpus {number}")
    check(case, model_of(case, tmp_path))


@pytest.mark.parametrize("family", ["llama", "qwen2_moe"])
def test_adapters_on_ranks(tmp_path: Path, family: str) -> None:
    """A divided table, a divided head or divided experts are changed on each rank."""
    model = write_tiny_checkpoint(tmp_path / "model", **FAMILIES[family])
    modules = (*PROJECTIONS, "embed_tokens") if family == "llama" else PROJECTIONS
    write_adapter(model / "adapter", model, 1, rank=3, modules=modules)
    seed = next(s for s in map(str, range(99)) if case_of(s).family == family)
    case = on_gpus(seed)
    for number, (_, request) in enumerate(case.requests):
        if number % 2 == 0:
            request.lora = LoRARequest("one", 1, str(model / "adapter"))
    check(replace(case, given={**case.given, "enable_lora": True, "max_lora_rank": 8}), model)


def test_each_rank_is_a_process_with_a_gpu_of_its_own(tmp_path: Path) -> None:
    model = str(write_tiny_checkpoint(tmp_path / "model", **FAMILIES["llama"]))
    prompts = [{"prompt_token_ids": [7, 8, 9]}, {"prompt_token_ids": [*range(20)]}]
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=5, ignore_eos=True)
    shared = {"max_model_len": 64, "skip_tokenizer_init": True, "dtype": "bfloat16"}
    found = []
    for given in ({"device": "cuda"}, {"device": "cuda:1", "tensor_parallel_size": 2}):
        llm = LLM(model, **shared, **given)
        assert llm.llm_engine.engine_core.executor.max_plans_in_flight == 2
        found.append([one.outputs[0].token_ids for one in llm.generate(prompts, params)])
        llm.close()
    assert found[0] == found[1]


def test_ranks_begin_steps_before_the_last_one_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks begin a step with the tokens that the first one has chosen and no host has seen."""
    fed: dict[CudaModel, list[bool]] = {}
    submit = CudaModel.submit

    def seen(self: CudaModel, batch: StepBatch) -> Any:
        places = batch.token_places
        fed.setdefault(self, []).append(places is not None and bool((places >= 0).any()))
        return submit(self, batch)

    model = write_tiny_checkpoint(tmp_path / "model", **FAMILIES["llama"])
    requests = []
    for number, given in enumerate(({}, {"logit_bias": {5: 9.0}, "stop_token_ids": [5]})):
        params = SamplingParams(
            temperature=0.8, seed=3, max_tokens=12, min_tokens=12, ignore_eos=True, **given
        )  # the host chooses the tokens of the second, for which one has two biases
        request = EngineCoreRequest(
            request_id=str(number), prompt_token_ids=[7, 8, 9], sampling_params=params,
            arrival_time=0.0,
        )  # fmt: skip
        requests.append((0, request))
    found = []
    for is_ahead, num_ranks in ((False, 1), (False, 3), (True, 3)):
        with monkeypatch.context() as patched:
            patched.setattr(CudaModel, "keeps_tokens", is_ahead)
            patched.setattr(CudaModel, "submit", seen)
            config = config_of(model, backend="cuda", tensor_parallel_size=num_ranks)
            core = engine_of_ranks(config) if num_ranks > 1 else EngineCore(config)
            assert core.executor.max_plans_in_flight == 1 + is_ahead
            fed.clear()
            found.append(run(core, requests).digest)
            assert len(fed) == num_ranks
            assert all(one == [False] + len(one[1:]) * [is_ahead] for one in fed.values())
    assert len(set(found)) == 1
