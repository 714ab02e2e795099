"""Checkpoints that hold all experts of a layer in one tensor: gpt-oss's MXFP4, and the tensors that
transformers has in memory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_cases import CASES, Case, logits_of, prompt_of, reference_model, write_checkpoint
from model_harness import Runner, load
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from quire.backends.base import Backend
from quire.config.checkpoint.model_files import read_config
from quire.errors import CheckpointError
from quire.models import build_program, name_map
from quire.weights import bind, open_checkpoint

TOKENS = 60
E, D, F = 5, 64, 96
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def in_4_bits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A gpt-oss with random bytes for experts, and transformers' model of what they stand for."""
    case = Case("gpt-oss-mxfp4", GptOssConfig, {
        "vocab_size": 151, "hidden_size": D, "intermediate_size": F, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "sliding_window": 19,
        "num_local_experts": E, "num_experts_per_tok": 2, "max_position_embeddings": 128,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "initializer_range": 0.15,
        "eos_token_id": None, "bos_token_id": None, "pad_token_id": None,
    })  # fmt: skip
    directory = write_checkpoint(case, tmp_path_factory.mktemp("mxfp4"))
    model, stored = reference_model(case, torch.float32), {}
    state = model.state_dict()
    for name, tensor in load_file(directory / "model.safetensors").items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            stored[name] = tensor
            continue
        rows, depth = tensor.shape[2], tensor.shape[1]
        blocks = torch.randint(0, 256, (E, rows, depth // 32, 16), dtype=torch.uint8)
        scales = torch.randint(122, 126, (E, rows, depth // 32), dtype=torch.uint8)
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        state[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    model.load_state_dict(state)
    save_file(stored, directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"],
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    return directory, case


def test_mxfp4_is_what_transformers_makes_of_it(in_4_bits: Any, backend: Backend) -> None:
    directory, case = in_4_bits
    prompt = prompt_of(case, TOKENS)
    truth = logits_of(case, prompt)
    runner = Runner(load(directory, backend))
    [found] = runner.step([(runner.request(prompt), TOKENS)])
    assert np.abs(found - truth).max() < 1e-3 * np.abs(truth).max()
    one_by_one = runner.request(prompt)
    alone = [runner.step([(one_by_one, 1)])[0][0] for _ in prompt]
    np.testing.assert_array_equal(np.stack(alone), found)


def test_mxfp4_is_held_exactly(in_4_bits: Any) -> None:
    directory, case = in_4_bits
    config = read_config(directory)
    store = bind(build_program(config), open_checkpoint(directory), name_map(config).canonical)
    state = reference_model(case, torch.float32).state_dict()
    for layer in range(3):
        experts = f"model.layers.{layer}.mlp.experts"
        gate_up, down = (state[f"{experts}.{name}"].mT.numpy() for name in FUSED)
        for expert in range(E):
            parts = {
                "gate": gate_up[expert, ::2],
                "up": gate_up[expert, 1::2],
                "down": down[expert],
            }
            for part, wanted in parts.items():
                held = store.get(f"{experts}.{expert}.{part}_proj.weight")
                assert held.format is not None
                np.testing.assert_array_equal(held.to_float32(), wanted)


FUSED = ("gate_up_proj", "down_proj")


@pytest.mark.parametrize("name", ["qwen3-moe", "glm4-moe"])
@pytest.mark.parametrize("transposed", [False, True])
def test_tensors_that_transformers_has_in_memory(
    name: str, transposed: bool, backend: Backend, tmp_path: Path
) -> None:
    case = next(case for case in CASES if case.name == name)
    directory = write_checkpoint(case, tmp_path)
    state = reference_model(case, torch.float32).state_dict()
    fused = {
        key: tensor.mT.contiguous() if transposed and key.endswith(FUSED) else tensor
        for key, tensor in state.items()
    }
    assert any(key.endswith(FUSED) for key in fused)
    save_file(fused, directory / "model.safetensors")
    prompt = prompt_of(case, TOKENS)
    truth = logits_of(case, prompt)
    runner = Runner(load(directory, backend))
    [found] = runner.step([(runner.request(prompt), TOKENS)])
    assert np.abs(found - truth).max() < 1e-4 * np.abs(truth).max()


def _without_scales(tensors: Tensors, name: str) -> None:
    del tensors[f"{name}_scales"]


def _fewer_scales(tensors: Tensors, name: str) -> None:
    tensors[f"{name}_scales"] = tensors[f"{name}_scales"][:, :, :-1].contiguous()


def _flat_blocks(tensors: Tensors, name: str) -> None:
    tensors[f"{name}_blocks"] = tensors[f"{name}_blocks"].flatten(2)


def _signed_blocks(tensors: Tensors, name: str) -> None:
    tensors[f"{name}_blocks"] = tensors[f"{name}_blocks"].view(torch.int8)


def _fewer_experts(tensors: Tensors, name: str) -> None:
    tensors[f"{name}_blocks"] = tensors[f"{name}_blocks"][:-1].contiguous()


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (_without_scales, "gate_up_proj_scales"),
        (_fewer_scales, "scales do not fit together"),
        (_flat_blocks, "4 dimensions"),
        (_signed_blocks, "must hold uint8"),
        (_fewer_experts, r"missing tensor .*experts\.4\.gate_proj"),
    ],
)
def test_damage_is_named(
    in_4_bits: Any, damage: Any, named: str, tmp_path: Path, backend: Backend
) -> None:
    directory, _ = in_4_bits
    tensors = load_file(directory / "model.safetensors")
    damage(tensors, "model.layers.0.mlp.experts.gate_up_proj")
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((directory / "config.json").read_text())
    with pytest.raises(CheckpointError, match=named):
        load(tmp_path, backend)
