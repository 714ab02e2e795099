"""Tiny models with experts, by the names that GGUF files have for their architectures."""

from __future__ import annotations

from typing import Any

import transformers
from model_cases import Case

_PLAIN = {"rope_type": "default", "rope_theta": 1e4}


def mixture(name: str, config_class: Any, **settings: Any) -> Case:
    """Five experts of 32 numbers, of which two are taken."""
    shape = {
        "vocab_size": 288, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 5,
        "num_local_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "max_position_embeddings": 128, "initializer_range": 0.15, "rope_parameters": _PLAIN,
        "tie_word_embeddings": False,
        "eos_token_id": None, "bos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    return Case(name, config_class, {**shape, **settings})


_HALF = {**_PLAIN, "partial_rotary_factor": 0.5}
_YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0,
    "truncate": False, "original_max_position_embeddings": 20,
}  # fmt: skip
_DEEPSEEK = {"n_routed_experts": 5, "n_shared_experts": 2, "num_hidden_layers": 3,
             "first_k_dense_replace": 1, "norm_topk_prob": True}  # fmt: skip
MIXTURES = [
    mixture("llama", transformers.MixtralConfig, sliding_window=None),
    mixture("qwen2moe", transformers.Qwen2MoeConfig, shared_expert_intermediate_size=64,
          num_key_value_heads=4, qkv_bias=True),
    mixture("qwen3moe", transformers.Qwen3MoeConfig, norm_topk_prob=True),
    mixture("olmoe", transformers.OlmoeConfig, num_key_value_heads=4, clip_qkv=2.0),
    mixture("granitemoe", transformers.GraniteMoeSharedConfig, shared_intermediate_size=64,
          embedding_multiplier=3.0, residual_multiplier=0.375, attention_multiplier=0.25,
          logits_scaling=2.5, num_key_value_heads=2),
    mixture("gpt-oss", transformers.GptOssConfig, sliding_window=19, rope_parameters=_YARN,
          num_hidden_layers=3),
    mixture("glm4moe", transformers.Glm4MoeConfig, **_DEEPSEEK, use_qk_norm=True,
          attention_bias=True, routed_scaling_factor=1.75, rope_parameters=_HALF),
    mixture("dots1", transformers.Dots1Config, **_DEEPSEEK, routed_scaling_factor=0.5,
          sliding_window=None),
    mixture("ernie4_5-moe", transformers.Ernie4_5_MoeConfig, num_hidden_layers=4,
          moe_num_experts=5, moe_k=2, moe_num_shared_experts=2, moe_layer_start_index=1,
          moe_layer_end_index=3, moe_layer_interval=2, use_bias=False),
    mixture("hunyuan-moe", transformers.HunYuanMoEV1Config, moe_topk=2, rope_parameters={
        "rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0}),
    mixture("minimax-m2", transformers.MiniMaxM2Config, rope_parameters=_HALF),
    mixture("deepseek", transformers.Qwen2MoeConfig, shared_expert_intermediate_size=64,
            qkv_bias=False, mlp_only_layers=[0], num_hidden_layers=3, intermediate_size=96),
    mixture("bailingmoe", transformers.Qwen2MoeConfig, shared_expert_intermediate_size=64,
            qkv_bias=False, norm_topk_prob=True),
    mixture("qwen3vlmoe", transformers.Qwen3MoeConfig, norm_topk_prob=True),
    mixture("phimoe", transformers.PhimoeConfig, attention_bias=True, lm_head_bias=True,
          router_jitter_noise=0.01, sliding_window=19),
    mixture("exaone-moe", transformers.ExaoneMoeConfig, num_hidden_layers=4, num_shared_experts=2,
          sliding_window=19, layer_types=["sliding_attention", "full_attention"] * 2,
          first_k_dense_replace=1, mlp_layer_types=["dense", *["sparse"] * 3],
          routed_scaling_factor=1.75),
    mixture("llama4", transformers.Llama4TextConfig, num_hidden_layers=5, hidden_size=96,
          intermediate_size_mlp=64, interleave_moe_layer_step=2, num_experts_per_tok=1),
]  # fmt: skip

OTHER_TENSORS = ("deepseek", "bailingmoe")
"""Of which transformers has no class: another one computes the same."""
