"""Ranks read their parts of one packed file: the same bytes as from the checkpoint."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from executor_plans import config_of
from rank_cases import engine_of_ranks, run
from tiny_checkpoint import write_tiny_checkpoint

from quire.backends.cpu import CpuBackend
from quire.backends.cpu.packed import find_packed
from quire.backends.registry import make_backend
from quire.config.engine_args import EngineArgs
from quire.config.ranks import Rank
from quire.core.engine_core import EngineCore
from quire.errors import CheckpointError
from quire.params import SamplingParams
from quire.planning.compile_plan import compile_plan
from quire.planning.quantize import quantize_model
from quire.program.values import WEIGHT_FORMATS
from quire.protocol import EngineCoreRequest
from quire.weights import PACKED_NAME, PackedFile
from quire.worker.model_weights import ModelWeights

WIDE = {
    "hidden_size": 160, "intermediate_size": 224, "num_attention_heads": 4, "head_dim": 32,
    "num_key_value_heads": 2, "tie_word_embeddings": True,
}  # fmt: skip
EXPERTS = {
    **WIDE, "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 3, "num_experts_per_tok": 2,
    "moe_intermediate_size": 96, "norm_topk_prob": True,
}  # fmt: skip
GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 128, "n_head": 4,
    "n_layer": 2, "n_positions": 128, "hidden_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 32, "intermediate_size": 512,
    "layer_norm_epsilon": 1e-5, "activation_function": "gelu",
}  # fmt: skip
FORMATS = [None, *(name for name in WEIGHT_FORMATS if name != "dense")]


pytestmark = pytest.mark.usefixtures("cpu_backend")


def pack(model: Path, out: Path, **given: Any) -> Path:
    return quantize_model(EngineArgs(str(model), **given), out).path


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("settings", [WIDE, EXPERTS, GPT2], ids=["dense", "experts", "gpt2"])
def test_a_part_has_the_bytes_of_the_checkpoint(
    tmp_path: Path, settings: dict[str, Any], name: str | None
) -> None:
    model = write_tiny_checkpoint(tmp_path / "model", **settings)
    given: dict[str, Any] = {"dtype": "bfloat16", "quantization": name}
    file = PackedFile(pack(model, tmp_path / "out", **given) / PACKED_NAME)
    config = config_of(model, backend="cpu", **given)
    backend, plan = make_backend(config.device), compile_plan(config)
    assert isinstance(backend, CpuBackend)
    num_parts = 0
    for rank in (Rank(0, 1, 1, 2), Rank(0, 2, 1, 3), Rank(1, 0, 2, 2)):
        program = plan.of_rank(rank).program
        weights = backend._lower(program, "bfloat16").weights
        with closing(ModelWeights(config).open(plan.program)) as store:
            wanted = backend._packer(store, "bfloat16").into_memory(weights)
        found = find_packed(backend._library, file, weights, "bfloat16")
        assert found.keys() == wanted.keys()
        for weight in weights:
            assert np.array_equal(found[weight].data, wanted[weight].data), str(weight)
            assert found[weight].numbers == wanted[weight].numbers
            num_parts += weight.param.share is not None
    assert num_parts > 20


@pytest.mark.parametrize("split", [(2, 1), (3, 2)], ids=str)
def test_ranks_of_a_packed_file_give_the_bits_of_one(
    tmp_path: Path, split: tuple[int, int]
) -> None:
    model = write_tiny_checkpoint(tmp_path / "model", **WIDE)
    out = pack(model, tmp_path / "out", quantization="int8", dtype="bfloat16")
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=9, ignore_eos=True, logprobs=2)
    request = EngineCoreRequest(
        request_id="one", prompt_token_ids=list(range(50)), sampling_params=params, arrival_time=0.0
    )
    wanted = run(EngineCore(config_of(out, backend="cpu")), [(0, request)])
    sizes = {"tensor_parallel_size": split[0], "pipeline_parallel_size": split[1]}
    found = run(engine_of_ranks(config_of(out, backend="cpu", **sizes)), [(0, request)])
    assert found.digest == wanted.digest


def test_parts_that_are_no_strips_are_refused(tmp_path: Path) -> None:
    """Heads of 16 columns, one for each rank."""
    model = write_tiny_checkpoint(tmp_path / "model", **{**WIDE, "head_dim": 16})
    file = PackedFile(pack(model, tmp_path / "out") / PACKED_NAME)
    config = config_of(tmp_path / "out", backend="cpu", tensor_parallel_size=4)
    backend, plan = make_backend(config.device), compile_plan(config).of_rank(Rank(0, 1, 1, 4))
    assert isinstance(backend, CpuBackend)
    weights = backend._lower(plan.program, "bfloat16").weights
    with pytest.raises(CheckpointError, match=r"at multiples of 32 columns.*qkv.*load the checkp"):
        find_packed(backend._library, file, weights, "bfloat16")
