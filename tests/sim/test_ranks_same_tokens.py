"""A model that is split among ranks gives the tokens and log-probabilities of one rank, bit for
bit, for random models, formats, splits and requests, with company, chunks and preemption."""

from __future__ import annotations

from pathlib import Path

import pytest
from executor_plans import config_of
from rank_cases import FAMILIES, case_of, check, engine_of_ranks, run
from sweeps import seed as sweep_seed
from tiny_checkpoint import write_tiny_checkpoint

from quire.core.engine_core import EngineCore
from quire.params import SamplingParams
from quire.protocol import EngineCoreRequest


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: write_tiny_checkpoint(tmp_path_factory.mktemp(name), **keys)
        for name, keys in FAMILIES.items()
    }


@pytest.mark.parametrize("number", range(8))
def test_ranks_give_the_bits_of_one(models: dict[str, Path], number: int) -> None:
    case = case_of(f"{sweep_seed()} {number}")
    check(case, models[case.family])


@pytest.mark.parametrize(
    ("family", "tensor", "stages", "backend"),
    [("lfm2", 2, 1, "cpu"), ("mamba2", 3, 1, "reference"), ("lfm2", 1, 2, "reference"),
     ("mamba2", 2, 2, "cpu"), ("qwen2", 2, 2, "cpu")],
)  # fmt: skip
def test_what_ranks_stored_gives_the_bits_of_one(
    models: dict[str, Path], tmp_path: Path, family: str, tensor: int, stages: int, backend: str
) -> None:
    """States of recurrent layers and K/V, in the KV store before a restart."""
    given = {"backend": backend, "max_model_len": 256}
    prompt = [7 * i % 250 for i in range(200)]
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=9, ignore_eos=True, logprobs=1)
    request = EngineCoreRequest(
        request_id="one", prompt_token_ids=prompt, sampling_params=params, arrival_time=0.0
    )
    requests = [(0, request)]
    wanted = run(EngineCore(config_of(models[family], **given)), requests)
    split = {"tensor_parallel_size": tensor, "pipeline_parallel_size": stages}
    stored = {"kv_store": True, "kv_store_path": str(tmp_path)}
    config = config_of(models[family], **given, **split, **stored)
    for num_cached in (0, 192):
        found = run(engine_of_ranks(config), requests)
        assert (found.digest, found.num_cached) == (wanted.digest, num_cached)


def test_an_aborted_request_leaves_its_row_when_its_last_plan_is_collected(
    models: dict[str, Path],
) -> None:
    """Otherwise its last token would count for the request that has the row next."""
    given = {"backend": "reference", "max_num_seqs": 2}
    params = SamplingParams(seed=1, trace_decode_token_ids=[*range(20)], logprobs=1)
    requests = {
        name: EngineCoreRequest(
            request_id=name, prompt_token_ids=[*name.encode()], sampling_params=params,
            arrival_time=0.0,
        )
        for name in ("first", "second", "third")
    }  # fmt: skip
    wanted = run(EngineCore(config_of(models["qwen3"], **given)), [(0, requests["third"])])
    core = engine_of_ranks(config_of(models["qwen3"], **given, pipeline_parallel_size=2))
    for name in ("first", "second"):
        core.add_request(requests[name])
    while not any(one.new_token_ids for one in core.step().outputs):
        pass
    assert core.scheduler.in_flight
    core.abort_requests(["first", "second"])
    assert run(core, [(0, requests["third"])]).digest == wanted.digest


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(7))
def test_many_splits_give_the_bits_of_one(models: dict[str, Path], part: int) -> None:
    cases = [case_of(str(seed)) for seed in range(300 * part, 300 * part + 300)]
    num_preempted = sum(check(case, models[case.family]) > 0 for case in cases)
    assert num_preempted > 0
