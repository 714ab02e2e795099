"""The keys that llama.cpp's conversion writes of models without experts, beside those of all.

Source: llama.cpp, conversion/.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gguf_model_file import rope_of


def head_dim_of(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _rotated(config: Mapping[str, Any]) -> dict[str, Any]:
    part = rope_of(config).get("partial_rotary_factor", 1.0)
    return {"rope.dimension_count": round(head_dim_of(config) * part)}


def _eps(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {"attention.layer_norm_epsilon": float(config[key])}


def _phi3(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = rope_of(config)
    keys = {
        "rope.scaling.original_context_length": config["original_max_position_embeddings"],
        "attention.sliding_window": config.get("sliding_window") or 0,
        **_rotated(config),
    }
    if rope["rope_type"] == "longrope":
        original = config["original_max_position_embeddings"]
        scale = config["max_position_embeddings"] / original
        factor = np.sqrt(1 + np.log(scale) / np.log(original)) if scale > 1 else 1.0
        keys["rope.scaling.attn_factor"] = float(factor)
    return keys


def _phi2(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_eps(config, "layer_norm_eps"),
        **_rotated(config),
        "feed_forward_length": 4 * config["hidden_size"],
        "attention.head_count_kv": config["num_attention_heads"],
        "rope.freq_base": None,
    }


def _stablelm(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_eps(config, "layer_norm_eps"),
        **_rotated(config),
        "use_parallel_residual": bool(config["use_parallel_residual"]),
    }


def _gptneox(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_eps(config, "layer_norm_eps"),
        **_rotated(config),
        "use_parallel_residual": bool(config["use_parallel_residual"]),
        "attention.head_count_kv": None,
        "rope.freq_base": None,
    }


def _falcon(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_eps(config, "layer_norm_epsilon"),
        "context_length": 2048,
        "tensor_data_layout": "jploski",
        "feed_forward_length": 4 * config["hidden_size"],
        "attention.head_count_kv": config.get("num_kv_heads")
        if config["new_decoder_architecture"]
        else 1,
        "rope.freq_base": None,
    }


def _bloom(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_eps(config, "layer_norm_epsilon"),
        "context_length": config.get("seq_length", 64),
        "feed_forward_length": 4 * config["hidden_size"],
        "attention.head_count_kv": config["num_attention_heads"],
        "rope.freq_base": None,
    }


def _mpt(config: Mapping[str, Any]) -> dict[str, Any]:
    attention = config["attn_config"]
    return {
        "attention.layer_norm_epsilon": 1e-5,
        "feed_forward_length": 4 * config["hidden_size"],
        "attention.clamp_kqv": attention["clip_qkv"],
        "attention.max_alibi_bias": float(attention["alibi_bias_max"]),
        "rope.freq_base": None,
    }


def _gpt2(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_eps(config, "layer_norm_epsilon"),
        "feed_forward_length": 4 * config["hidden_size"],
        "rope.freq_base": None,
    }


def _olmo(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"attention.layer_norm_epsilon": 1e-5, "attention.clamp_kqv": config["clip_qkv"]}


def _windows(config: Mapping[str, Any]) -> dict[str, Any]:
    if config.get("sliding_window") is None:
        return {}
    return {
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [
            kind == "sliding_attention" for kind in config["layer_types"]
        ],
    }


def _olmo2(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**_windows(config), **_yarn(config)}


def _yarn(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = rope_of(config)
    if rope.get("rope_type") != "yarn":
        return {}
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": float(rope["factor"]),
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        "rope.scaling.yarn_beta_fast": float(rope["beta_fast"]),
        "rope.scaling.yarn_beta_slow": float(rope["beta_slow"]),
        "rope.scaling.yarn_attn_factor": rope.get("attention_factor"),
    }


def _command_r(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_eps(config, "layer_norm_eps"),
        "logit_scale": float(config["logit_scale"]),
        "rope.scaling.type": "none",
    }


def _cohere2(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_command_r(config),
        "attention.sliding_window": config["sliding_window"],
        "rope.dimension_count": head_dim_of(config),
    }


def _nemotron(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**_eps(config, "norm_eps"), **_rotated(config), "rope.scaling.type": "none"}


def _starcoder2(config: Mapping[str, Any]) -> dict[str, Any]:
    return _eps(config, "norm_epsilon")


def _minicpm(config: Mapping[str, Any]) -> dict[str, Any]:
    """Of a Granite model with the same factors."""
    return {
        "embedding_scale": float(config["embedding_multiplier"]),
        "residual_scale": float(config["residual_multiplier"]),
        "logit_scale": float(config["logits_scaling"]),
        **({"rope.scaling.type": "longrope"} if rope_of(config).get("long_factor") else {}),
    }


def _hunyuan(config: Mapping[str, Any]) -> dict[str, Any]:
    rope, dim = rope_of(config), config["head_dim"]
    return {
        "rope.freq_base": float(rope["rope_theta"] * rope["alpha"] ** (dim / (dim - 2))),
        "rope.scaling.type": "none",
        "rope.scaling.factor": 1.0,
    }


def _mistral3(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = rope_of(config)
    if "llama_4_scaling_beta" not in rope:
        return {}
    return {
        **_yarn(config),
        "rope.scaling.yarn_log_multiplier": float(rope["mscale_all_dim"]),
        "attention.temperature_scale": float(rope["llama_4_scaling_beta"]),
    }


def _sections(config: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    """Of a rotation for images, whose positions are equal in a text."""
    return {"rope.dimension_sections": [4, 2, 2, 0]}


KEYS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "phi3": _phi3,
    "phi2": _phi2,
    "starcoder2": _starcoder2,
    "stablelm": _stablelm,
    "gptneox": _gptneox,
    "falcon": _falcon,
    "bloom": _bloom,
    "mpt": _mpt,
    "gpt2": _gpt2,
    "olmo": _olmo,
    "olmo2": _olmo2,
    "exaone4": _windows,
    "command-r": _command_r,
    "cohere2": _cohere2,
    "nemotron": _nemotron,
    "minicpm": _minicpm,
    "glm4": _rotated,
    "chatglm": _rotated,
    "hunyuan-dense": _hunyuan,
    "mistral3": _mistral3,
    "pangu-embedded": _yarn,
    "qwen2vl": _sections,
    "qwen3vl": lambda config: {**_sections(config), "n_deepstack_layers": 3},
    "orion": lambda config: _eps(config, "layer_norm_eps"),
}
"""The keys that an architecture has beside those of all, or instead of them. None: it has not."""
