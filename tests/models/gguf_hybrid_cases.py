"""Tiny models with recurrent layers or latent attention, by the names that GGUF files have for
their architectures."""

from __future__ import annotations

from typing import Any

from hybrid_cases import HYBRID_CASES
from model_cases import Case

_ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3-next": ("qwen3next", {"mlp_only_layers": []}), "qwen3.5": ("qwen35", {}),
    "qwen3.5-moe": ("qwen35moe", {}), "lfm2": ("lfm2", {}),
    "lfm2-moe": ("lfm2moe", {"tie_word_embeddings": True}),
    "granite4-h": ("granitehybrid", {}),
    "granite4-h-dense": ("granitehybrid", {"time_step_limit": [0.0, float("inf")]}),
    "falcon-h1": ("falcon-h1", {}), "nemotron-h": ("nemotron_h", {}), "jamba": ("jamba", {}),
    "nemotron-h-experts": ("nemotron_h_moe", {}), "nemotron-h-latent": ("nemotron_h_moe", {}),
    "mamba": ("mamba", {}), "falcon-mamba": ("mamba", {}), "mamba2": ("mamba2", {}),
    "deepseek-v2": ("deepseek2", {"rope_parameters": "one scale"}),
    "deepseek-v3": ("deepseek2", {"rope_parameters": "one scale"}),
    "glm4-moe-lite": ("deepseek2", {}), "kimi-linear": ("kimi-linear", {}),
    "minicpm3": ("minicpm3", {"dim_model_base": 256, "scale_emb": 12}),
}  # fmt: skip
"""By the names of `HYBRID_CASES`: the architecture, and settings that files can say."""


def _with(case: Case, changes: dict[str, Any]) -> Case:
    settings = {**case.settings, "vocab_size": 288, **changes}
    if changes.get("rope_parameters"):  # llama.cpp knows one factor only
        yarn = dict(case.settings["rope_parameters"])
        settings["rope_parameters"] = {**yarn, "mscale": yarn["mscale_all_dim"]}
    return Case(case.name, case.config_class, settings)


GGUF_HYBRIDS = [
    (_ARCHITECTURES[case.name][0], _with(case, _ARCHITECTURES[case.name][1]))
    for case in HYBRID_CASES
    if case.name in _ARCHITECTURES
]
"""Architectures of files, and the models."""

_EVEN: dict[str, dict[str, Any]] = {
    "qwen3.5": {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32,
                "linear_key_head_dim": 32, "linear_value_head_dim": 32},
    "lfm2": {"hidden_size": 192, "intermediate_size": 96, "block_auto_adjust_ff_dim": False},
    "granite4-h-dense": {"hidden_size": 192, "shared_intermediate_size": 64, "mamba_n_heads": 12,
                         "mamba_d_head": 32, "mamba_d_state": 16},
    "deepseek-v3": {"hidden_size": 64, "intermediate_size": 96, "kv_lora_rank": 32,
                    "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32,
                    "q_lora_rank": 32, "moe_intermediate_size": 32},
}  # fmt: skip
"""Sizes of whole blocks."""
EVEN_HYBRIDS = [
    (architecture, Case(case.name, case.config_class, {**case.settings, **_EVEN[case.name]}))
    for architecture, case in GGUF_HYBRIDS
    if case.name in _EVEN
]
