"""Quantised checkpoints with recurrent layers and with latent attention: the numbers of each
format, and logits near those of the same numbers in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from described_files import GPTQ, as_awq, gptq
from hybrid_cases import HYBRID_CASES
from model_cases import Case, prompt_of, reference_model
from model_harness import Runner, load
from quantised_files import KINDS, Packer
from safetensors.torch import load_file, save_file

from quire.backends.base import Backend
from quire.config.checkpoint.model_files import read_config
from quire.models import build_program, name_map, shipped_format
from quire.planning.stored_matrices import as_stored
from quire.weights import bind, open_checkpoint
from quire.weights.quantised.store import as_shipped

_SIZES: dict[str, dict[str, Any]] = {
    "qwen3.5": {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32,
                "num_attention_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
                "linear_num_value_heads": 4},
    "lfm2": {"hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 4,
             "block_auto_adjust_ff_dim": False, "conv_bias": False},
    "granite4-h-dense": {"hidden_size": 128, "shared_intermediate_size": 192,
                         "num_attention_heads": 4, "mamba_n_heads": 8, "mamba_d_head": 32,
                         "mamba_d_state": 16, "mamba_proj_bias": False},
    "deepseek-v3": {"num_key_value_heads": 4, "hidden_size": 128, "intermediate_size": 192,
                    "num_attention_heads": 4,
                    "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32,
                    "v_head_dim": 32, "q_lora_rank": 64, "moe_intermediate_size": 64,
                    "attention_bias": False},
}  # fmt: skip
_KINDS: dict[str, tuple[Packer, dict[str, Any]]] = {
    "fp8-blocks": KINDS["fp8-blocks"],
    "gptq": (gptq(4, symmetric=True), GPTQ),
    "awq": (as_awq, {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True,
                     "version": "gemm"}),
    "pack-quantized": KINDS["packed-act-order"],
    "float-quantized": KINDS["float-quantized-rows"],
}  # fmt: skip
CASES = {
    case.name: Case(case.name, case.config_class, {**case.settings, **_SIZES[case.name]})
    for case in HYBRID_CASES
    if case.name in _SIZES
}


def _is_quantised(name: str, tensor: torch.Tensor) -> bool:
    ends = ("proj.weight", "_linear.weight", ".w1.weight", ".w2.weight", ".w3.weight",
            "_proj_qkv.weight", "_proj_z.weight", "_with_mqa.weight")  # fmt: skip
    return name.endswith(ends) and tensor.dim() == 2 and tensor.shape[0] % 32 == 0


def _write(case: Case, kind: str, directory: Path) -> dict[str, torch.Tensor]:
    """The checkpoint; returns what each of its tensors stands for."""
    pack, config = _KINDS[kind]
    reference_model(case, torch.float32).save_pretrained(directory)
    stored, meant = {}, {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        meant[name] = tensor
        if _is_quantised(name, tensor):
            parts, meant[name] = pack(name.removesuffix(".weight"), tensor)
            stored.update(parts)
        else:
            stored[name] = tensor
    save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": config}))
    return meant


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("name", CASES)
def test_numbers_and_logits(name: str, kind: str, cpu_backend: Backend, tmp_path: Path) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    meant = _write(case, kind, tmp_path)
    config = as_stored(read_config(tmp_path), tmp_path)
    store = as_shipped(open_checkpoint(tmp_path), shipped_format(config))
    bound = bind(build_program(config), store, name_map(config).canonical)
    for tensor in bound.names():
        expected = meant[tensor].float().numpy()
        np.testing.assert_array_equal(bound.get(tensor).to_float32(), expected, err_msg=tensor)
    prompt = prompt_of(case, 40)
    runner = Runner(load(tmp_path, cpu_backend))
    [found] = runner.step([(runner.request(prompt), len(prompt))])
    torch.manual_seed(0)
    plain = tmp_path / "plain"
    reference_model(case, torch.float32).save_pretrained(plain)
    save_file(meant, plain / "model.safetensors", metadata={"format": "pt"})
    runner = Runner(load(plain, cpu_backend))
    [truth] = runner.step([(runner.request(prompt), len(prompt))])
    errors = np.abs(found - truth).max(axis=1) / np.abs(truth).max()
    assert np.quantile(errors, 0.9) < 1e-2
