"""Tiny random checkpoints of families with recurrent layers and with latent attention."""

from __future__ import annotations

from typing import Any

import transformers
from model_cases import Case

_SHAPE = {
    "vocab_size": 151, "hidden_size": 60, "intermediate_size": 90, "num_hidden_layers": 4,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "initializer_range": 0.15, "tie_word_embeddings": False, "eos_token_id": None,
    "bos_token_id": None, "pad_token_id": None,
}  # fmt: skip
_EXPERTS = {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 27}
_DELTA = {
    "head_dim": 24, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
    "linear_key_head_dim": 20, "linear_value_head_dim": 12,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
}  # fmt: skip
_MAMBA2 = {
    "mamba_n_heads": 10, "mamba_d_head": 12, "mamba_n_groups": 2, "mamba_d_state": 18,
    "mamba_expand": 2,
}  # fmt: skip
_LATENT = {
    "num_key_value_heads": 6, "kv_lora_rank": 28, "qk_nope_head_dim": 14, "qk_rope_head_dim": 8,
    "v_head_dim": 10, "q_lora_rank": 22, "num_hidden_layers": 3,
}  # fmt: skip
_V3 = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 27, "n_group": 4,
    "topk_group": 2, "first_k_dense_replace": 1, "n_shared_experts": 2,
}  # fmt: skip
_YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0,
    "mscale": 0.7, "mscale_all_dim": 0.9, "original_max_position_embeddings": 32,
}  # fmt: skip


def _case(name: str, config_class: Any, *parts: dict[str, Any], **settings: Any) -> Case:
    shape = dict(_SHAPE)
    for part in parts:
        shape |= part
    return Case(name, config_class, {**shape, **settings})


def _bare(name: str, config_class: Any, **settings: Any) -> Case:
    """Without attention."""
    kept = {key: value for key, value in _SHAPE.items() if "attention" not in key}
    for key in ("intermediate_size", "num_key_value_heads", "max_position_embeddings"):
        kept.pop(key)
    return Case(name, config_class, {**kept, **settings})


def _longcat(name: str, **settings: Any) -> Case:
    """Each of its layers is two of other families."""
    case = _case(name, transformers.LongcatFlashConfig, _LATENT, num_layers=2, ffn_hidden_size=50,
                 n_routed_experts=6, moe_topk=4, expert_ffn_hidden_size=27, head_dim=8,
                 routed_scaling_factor=1.5, **settings)  # fmt: skip
    kept = {k: v for k, v in case.settings.items()
            if k not in ("num_hidden_layers", "intermediate_size")}  # fmt: skip
    return Case(name, case.config_class, kept)


HYBRID_CASES = [
    _case("qwen3-next", transformers.Qwen3NextConfig, _EXPERTS, _DELTA,
          shared_expert_intermediate_size=31, mlp_only_layers=[1]),
    _case("qwen3.5", transformers.Qwen3_5TextConfig, _DELTA),
    _case("qwen3.5-moe", transformers.Qwen3_5MoeTextConfig, _EXPERTS, _DELTA,
          shared_expert_intermediate_size=31),
    _case("lfm2", transformers.Lfm2Config, block_multiple_of=4, block_ffn_dim_multiplier=1.3,
          layer_types=["conv", "full_attention", "conv", "conv"], conv_L_cache=5, conv_bias=True),
    _case("lfm2-moe", transformers.Lfm2MoeConfig, _EXPERTS, num_dense_layers=1,
          layer_types=["conv", "full_attention", "conv", "conv"]),
    _case("granite4-h", transformers.GraniteMoeHybridConfig, _MAMBA2, num_local_experts=7,
          num_experts_per_tok=3, shared_intermediate_size=41, embedding_multiplier=3.0,
          residual_multiplier=0.4, attention_multiplier=0.07, logits_scaling=2.5,
          layer_types=["linear_attention", "full_attention", *["linear_attention"] * 2]),
    _case("granite4-h-dense", transformers.GraniteMoeHybridConfig, _MAMBA2, num_local_experts=0,
          shared_intermediate_size=41, mamba_conv_bias=False, mamba_proj_bias=True,
          time_step_limit=[0.1, 1.5], layer_types=["linear_attention"] * 3 + ["full_attention"]),
    _case("falcon-h1", transformers.FalconH1Config, _MAMBA2, mamba_d_ssm=120, head_dim=10,
          mamba_rms_norm=True, mamba_norm_before_gate=False, key_multiplier=0.8,
          attention_in_multiplier=1.2, attention_out_multiplier=0.7, ssm_in_multiplier=1.1,
          ssm_out_multiplier=0.6, ssm_multipliers=[0.5, 1.2, 0.9, 1.1, 0.8],
          mlp_multipliers=[0.9, 0.6], embedding_multiplier=2.0, lm_head_multiplier=0.4),
    _case("falcon-h1-plain", transformers.FalconH1Config, _MAMBA2, mamba_d_ssm=120,
          mamba_n_groups=1, mamba_rms_norm=True, mamba_norm_before_gate=True,
          projectors_bias=True, mamba_proj_bias=True, ssm_in_multiplier=1.1),
    _case("bamba", transformers.BambaConfig, _MAMBA2, attn_layer_indices=[1],
          num_attention_heads=5, num_key_value_heads=1),
    # transformers bounds the time step of prompts by time_step_min, and that of further tokens not
    # at all. The models were trained without the bound, and vLLM and llama.cpp have none.
    _case("nemotron-h", transformers.NemotronHConfig, head_dim=14, time_step_min=1e-30,
          mamba_num_heads=10, mamba_head_dim=12, n_groups=2, ssm_state_size=18,
          layer_norm_epsilon=1e-4,
          layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention"]),
    _case("nemotron-h-experts", transformers.NemotronHConfig, head_dim=14, time_step_min=1e-30,
          mamba_num_heads=10, mamba_head_dim=12, n_groups=2, ssm_state_size=18,
          n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=27, n_group=4,
          topk_group=2, routed_scaling_factor=1.7, moe_shared_expert_intermediate_size=41,
          layers_block_type=["linear_attention", "moe", "full_attention", "moe"]),
    _case("nemotron-h-latent", transformers.NemotronHConfig, head_dim=14, time_step_min=1e-30,
          mamba_num_heads=10, mamba_head_dim=12, n_groups=2, ssm_state_size=18, mlp_bias=True,
          n_routed_experts=7, num_experts_per_tok=2, moe_intermediate_size=27, moe_latent_size=23,
          moe_shared_expert_intermediate_size=41, norm_topk_prob=False,
          layers_block_type=["moe", "linear_attention", "full_attention", "moe"]),
    _case("jamba", transformers.JambaConfig, num_experts=7, num_experts_per_tok=3,
          attn_layer_period=3, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1,
          mamba_d_state=9, mamba_dt_rank=5),
    _bare("mamba", transformers.MambaConfig, state_size=9, time_step_rank=5),
    _bare("falcon-mamba", transformers.FalconMambaConfig, state_size=9),
    _bare("mamba2", transformers.Mamba2Config, num_heads=10, head_dim=12, n_groups=2,
          state_size=18),
    _case("deepseek-v2", transformers.DeepseekV2Config, _LATENT, _V3, q_lora_rank=None,
          topk_method="group_limited_greedy", rope_parameters=_YARN, routed_scaling_factor=1.3),
    _case("deepseek-v3", transformers.DeepseekV3Config, _LATENT, _V3, rope_parameters=_YARN,
          attention_bias=True),
    _case("glm4-moe-lite", transformers.Glm4MoeLiteConfig, _LATENT, _V3,
          mlp_layer_types=["dense", "sparse", "sparse"]),
    _case("kimi-linear", transformers.KimiLinearConfig, {**_LATENT, **_V3, "q_lora_rank": None},
          num_local_experts=8, linear_head_dim=14, linear_num_heads=5, num_hidden_layers=4,
          layer_types=["linear_attention", "full_attention", *["linear_attention"] * 2],
          mlp_layer_types=["dense", *["sparse"] * 3]),
    _longcat("longcat-flash", zero_expert_num=5),
    _longcat("longcat-flash-yarn", zero_expert_num=1, rope_parameters=_YARN),
    _case("minicpm3", transformers.MiniCPM3Config, _LATENT, dim_model_base=20, scale_emb=3),
]  # fmt: skip
