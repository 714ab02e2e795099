"""Writes tiny random draft heads for the models of `tiny_checkpoint`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from tiny_checkpoint import tiny_values, write_tiny_checkpoint

from quire.models import ModelDescription
from quire.models.heads.mark import with_head
from quire.models.heads.own import OWN
from quire.program import Program

_EXPERTS = {
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1,
    "norm_topk_prob": True, "n_group": 2, "topk_group": 1, "routed_scaling_factor": 1.5,
}  # fmt: skip
_DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 12, "linear_conv_kernel_dim": 4, "partial_rotary_factor": 0.5,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
MTP_MODELS: dict[str, dict[str, Any]] = {
    "glm": {
        "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", **_EXPERTS,
        "use_qk_norm": True, "partial_rotary_factor": 0.5, "attention_bias": False,
    },
    "deepseek": {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", **_EXPERTS,
        "kv_lora_rank": 28, "q_lora_rank": 22, "qk_nope_head_dim": 14, "qk_rope_head_dim": 8,
        "v_head_dim": 10, "num_key_value_heads": 4, "head_dim": 8,
    },
    "qwen-next": {
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", **_DELTA,
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 20, "norm_topk_prob": True, "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "qwen-3.5": {
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", **_DELTA,
        "mtp_num_hidden_layers": 1,
    },
}  # fmt: skip
"""Keys of models with a layer for multi-token prediction."""


def write_mtp_model(folder: Path, kind: str, seed: int = 0, **overrides: Any) -> Path:
    """A model of `MTP_MODELS`, with its layer."""
    path = write_tiny_checkpoint(folder, seed, **{**MTP_MODELS[kind], **overrides})
    config = json.loads((path / "config.json").read_text())
    tensors = load_file(path / "model.safetensors")
    added = _tensors(ModelDescription(with_head(config, "mtp", config, [])).program, seed + 1)
    save_file({**added, **tensors}, path / "model.safetensors")
    return path


def write_head(
    folder: Path,
    target: Path,
    method: str,
    seed: int = 0,
    tensors: tuple[str, ...] = (),
    **overrides: Any,
) -> Path:
    """An EAGLE or EAGLE-3 head, or Medusa heads. `tensors`: those of `OPTIONAL` that it has."""
    of_target = json.loads((target / "config.json").read_text())
    kept = ("hidden_size", "vocab_size", "num_attention_heads", "num_key_value_heads", "head_dim",
            "rms_norm_eps", "rope_theta", "hidden_act", "intermediate_size")  # fmt: skip
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1,
        "max_position_embeddings": 64, **{key: of_target[key] for key in kept}, **overrides,
    }  # fmt: skip
    program = ModelDescription(with_head(config, method, of_target, [*tensors])).program
    own = {
        name.removeprefix(OWN): values
        for name, values in _tensors(program, seed).items()
        if name.startswith(OWN)
    }
    if "d2t" in tensors:
        size, vocab_size = config["draft_vocab_size"], config["vocab_size"]
        chosen = np.random.default_rng(seed).choice(vocab_size, size, replace=False)
        own["d2t"] = np.sort(chosen) - np.arange(size)
        own["t2d"] = np.isin(np.arange(vocab_size), chosen)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(own, folder / "model.safetensors")
    return folder


def _tensors(program: Program, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        part.name: tiny_values(random, part.name, part.shape)
        for param in program.params()
        for part in param.parts
    }
