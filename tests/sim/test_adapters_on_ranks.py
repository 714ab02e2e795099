"""Requests with adapters get the bits of one rank on several ranks, beside requests with other
adapters and without, in chunks, preempted and resumed."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from adapter_writer import PROJECTIONS, write_adapter
from executor_plans import config_of
from rank_cases import FAMILIES, Case, case_of, check, engine_of_ranks, run
from sweeps import seed as sweep_seed
from tiny_checkpoint import write_tiny_checkpoint

from quire.adapters import LoRARequest
from quire.backends.given_rows import RowWidths
from quire.core.engine_core import EngineCore
from quire.models import build_program
from quire.protocol import InputRows

MODULES = {
    "qwen3": PROJECTIONS,
    "llama": (*PROJECTIONS, "embed_tokens"),
    "qwen2": (*PROJECTIONS, "lm_head"),
    "gemma2": PROJECTIONS,
    "qwen2_moe": PROJECTIONS,
    "minicpm3": ("q_a_proj", "q_b_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    "lfm2": ("q_proj", "out_proj", "in_proj", "w1", "w2", "w3"),
    "mpt": ("Wqkv", "out_proj", "up_proj", "down_proj"),
}
"""Modules that the adapters of a family change."""
_KINDS = {
    "plain": {},
    "bias": {"lora_bias": True},
    "gains": {"use_dora": True},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each with adapters in its folder."""
    found = {}
    for family, modules in MODULES.items():
        found[family] = write_tiny_checkpoint(tmp_path_factory.mktemp(family), **FAMILIES[family])
        for number, kind in enumerate(_KINDS.values()):
            own = [one for one in modules if one != "embed_tokens" or not kind]
            folder = found[family] / f"adapter{number}"
            write_adapter(folder, found[family], number, rank=3 + number, modules=own, **kind)
    return found


def with_adapters(case: Case, model: Path, seed: str) -> Case:
    """The case with an adapter for most of its requests."""
    rng = random.Random(seed)
    requests = []
    for step, request in case.requests:
        number = rng.choice([None, *range(len(_KINDS))])
        if number is not None:
            request.lora = LoRARequest(f"a{number}", number + 1, str(model / f"adapter{number}"))
        requests.append((step, request))
    given = {**case.given, "enable_lora": True, "max_lora_rank": 8}
    narrow = {**case.narrow, "max_cpu_loras": rng.choice([1, 2, 3])}
    return replace(case, given=given, narrow=narrow, requests=requests)


def some_case(seed: str, models: dict[str, Path]) -> tuple[Case, Path]:
    attempt = 0
    while (case := case_of(f"{seed} {attempt}")).family not in MODULES:
        attempt += 1
    model = models[case.family]
    return with_adapters(case, model, seed), model


@pytest.mark.sweep(3)
@pytest.mark.parametrize("number", range(6))
def test_adapters_on_ranks_give_the_bits_of_one(models: dict[str, Path], number: int) -> None:
    check(*some_case(f"{sweep_seed()} {number}", models))


@pytest.mark.parametrize(
    ("family", "tensor", "stages", "backend"),
    [("qwen3", 3, 1, "cpu"), ("qwen2", 2, 2, "reference"), ("mpt", 1, 3, "cpu")],
)
def test_given_k_and_v_on_ranks(
    models: dict[str, Path], family: str, tensor: int, stages: int, backend: str
) -> None:
    """As prefix tuning gives them."""
    given = {"backend": backend}
    requests = case_of(family).requests
    one = config_of(models[family], **given)
    width = RowWidths.of(build_program(one.model.hf_config)).kv
    for number, (_, request) in enumerate(requests):
        rows = np.random.default_rng(number % 2).standard_normal((5, width), np.float32)
        request.prompt_token_ids = [7] * 5 + request.prompt_token_ids
        request.input_rows = [InputRows(0, 5, bytes([number % 2]), rows.tobytes(), "kv")]
    split = {"tensor_parallel_size": tensor, "pipeline_parallel_size": stages}
    found = run(engine_of_ranks(config_of(models[family], **given, **split)), requests)
    assert found.digest == run(EngineCore(one), requests).digest


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(10))
def test_many_adapters_on_ranks(models: dict[str, Path], part: int) -> None:
    for seed in range(100 * part, 100 * part + 100):
        check(*some_case(str(seed), models))
