"""Tiny models of Gemma 3n and 4, by the names that GGUF files have for their architectures."""

from __future__ import annotations

from typing import Any

import transformers
from model_cases import Case

_KINDS = ["sliding_attention", "full_attention"]
_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
    "full_attention": {"rope_type": "proportional", "rope_theta": 5e4,
                       "partial_rotary_factor": 0.25},
}  # fmt: skip
_PLAIN = {kind: {"rope_type": "default", "rope_theta": base}
          for kind, base in zip(_KINDS, (5e3, 5e5), strict=True)}  # fmt: skip


def gemma(name: str, config_class: Any, **settings: Any) -> Case:
    shape = {
        "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "sliding_window": 19,
        "layer_types": _KINDS * 3, "max_position_embeddings": 128, "initializer_range": 0.15,
        "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": 288, "final_logit_softcapping": 5.0,
        "tie_word_embeddings": True, "eos_token_id": None, "bos_token_id": None,
        "pad_token_id": None,
    }  # fmt: skip
    return Case(name, config_class, {**shape, **settings})


GEMMA = [
    gemma("gemma3n", transformers.Gemma3nTextConfig, laurel_rank=32, altup_num_inputs=4,
          altup_active_idx=1, rope_parameters=_PLAIN, intermediate_size=[96] * 6,
          vocab_size_per_layer_input=256,
          activation_sparsity_pattern=[0.95, 0.95, 0.0, 0.5, 0.0, 0.0]),
    gemma("gemma4", transformers.Gemma4TextConfig, global_head_dim=64, rope_parameters=_ROPE,
          use_double_wide_mlp=True),
    gemma("gemma4:shared", transformers.Gemma4TextConfig, global_head_dim=64,
          rope_parameters=_ROPE, attention_k_eq_v=True, num_global_key_value_heads=1,
          hidden_size_per_layer_input=0, num_kv_shared_layers=0),
    gemma("gemma4:experts", transformers.Gemma4TextConfig, global_head_dim=64,
          rope_parameters=_ROPE, hidden_size_per_layer_input=0, num_kv_shared_layers=0,
          enable_moe_block=True, num_experts=5, top_k_experts=2, moe_intermediate_size=32),
]  # fmt: skip
