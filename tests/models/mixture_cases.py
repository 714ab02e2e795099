"""Cases of the families with experts, each with all its deltas on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers


def mixture_cases(mixture: Callable[..., Any]) -> list[Any]:
    """`mixture(name, config_class, **settings)` makes a case: seven experts of 27 numbers, of which
    three are taken."""
    deepseek = {"n_routed_experts": 7, "n_shared_experts": 2, "num_hidden_layers": 3}
    half = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    granite = {
        "layer_types": ["full_attention"] * 2, "shared_intermediate_size": 41,
        "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.07,
        "logits_scaling": 2.5, "mamba_n_heads": 8,
    }  # fmt: skip
    yarn = {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": False, "original_max_position_embeddings": 20,
    }  # fmt: skip
    return [
        mixture("gpt-oss", transformers.GptOssConfig, num_hidden_layers=4, sliding_window=21,
                max_position_embeddings=160, rope_parameters=yarn),
        mixture("glm4-moe", transformers.Glm4MoeConfig, **deepseek, first_k_dense_replace=1,
                use_qk_norm=True, attention_bias=True, routed_scaling_factor=1.7,
                norm_topk_prob=True, rope_parameters=half),
        mixture("glm4-moe-groups", transformers.Glm4MoeConfig,
                **{**deepseek, "n_routed_experts": 12}, num_local_experts=12, n_group=4,
                topk_group=2, norm_topk_prob=False, rope_parameters=half),
        mixture("solar-open", transformers.SolarOpenConfig, **deepseek, attention_bias=True,
                routed_scaling_factor=0.7, norm_topk_prob=True),
        mixture("exaone-moe", transformers.ExaoneMoeConfig, num_hidden_layers=4,
                num_shared_experts=2, sliding_window=21, sliding_window_pattern=2,
                first_k_dense_replace=2),
        mixture("mellum", transformers.MellumConfig, num_hidden_layers=4, sliding_window=21,
                layer_types=["sliding_attention", "full_attention"] * 2,
                mlp_layer_types=["sparse", "dense", "sparse", "sparse"], rope_parameters={
                    "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
                    "full_attention": {**yarn, "truncate": True}}),
        mixture("granite4", transformers.GraniteMoeHybridConfig, **granite, num_local_experts=7,
                position_embedding_type="rope", attention_bias=True),
        mixture("granite4-dense", transformers.GraniteMoeHybridConfig, **granite,
                num_local_experts=0, position_embedding_type="nope"),
        mixture("dots1", transformers.Dots1Config, **deepseek, first_k_dense_replace=1,
                routed_scaling_factor=2.5, norm_topk_prob=True, sliding_window=21,
                max_window_layers=2),
        mixture("ernie4.5-moe", transformers.Ernie4_5_MoeConfig, num_hidden_layers=4,
                moe_num_experts=7, moe_k=3, moe_num_shared_experts=2, moe_layer_start_index=1,
                moe_layer_end_index=2, use_bias=True, tie_word_embeddings=False),
        mixture("hunyuan-moe", transformers.HunYuanMoEV1Config, moe_topk=3,
                rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0,
                                 "factor": 1.0}),
        mixture("phimoe", transformers.PhimoeConfig, num_experts_per_tok=2, attention_bias=True,
                lm_head_bias=True, router_jitter_noise=0.3, sliding_window=33),
        mixture("minimax-m2", transformers.MiniMaxM2Config, num_key_value_heads=3,
                rope_parameters=half),
        mixture("flex-olmo", transformers.FlexOlmoConfig, num_key_value_heads=3,
                norm_topk_prob=False),
        mixture("llama4", transformers.Llama4TextConfig, num_hidden_layers=4,
                intermediate_size_mlp=50, no_rope_layers=[1, 0, 1, 0], attention_chunk_size=19,
                floor_scale=8, attn_scale=0.5, interleave_moe_layer_step=2,
                num_experts_per_tok=1),
        mixture("llama4-two-experts", transformers.Llama4TextConfig, num_hidden_layers=3,
                intermediate_size_mlp=50, attention_chunk_size=32, use_qk_norm=False,
                attn_temperature_tuning=False, num_experts_per_tok=2, attention_bias=True),
    ]  # fmt: skip
