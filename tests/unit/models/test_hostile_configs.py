"""Random damage to config.json: a program comes out, or an error of our own; never another one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeps import examples

from quire.config.kv_groups import LatentGroup
from quire.config.state_groups import StateGroup
from quire.errors import CheckpointError, ModelError
from quire.models import build_program, model_facts, name_map
from quire.models.pooling.head import PoolingHead, marked

BASE: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "num_experts": 5, "num_experts_per_tok": 2,
    "ffn_dim": 40, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
}  # fmt: skip
ARCHITECTURES = [
    "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
    "OPTForCausalLM", "GPT2LMHeadModel", "MixtralForCausalLM", "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM", "OlmoeForCausalLM", "GraniteMoeForCausalLM",
    "GptOssForCausalLM", "Glm4MoeForCausalLM", "SolarOpenForCausalLM", "ExaoneMoeForCausalLM",
    "Dots1ForCausalLM", "MiniMaxM2ForCausalLM", "Ernie4_5_MoeForCausalLM",
    "HunYuanMoEV1ForCausalLM", "PhiMoEForCausalLM", "Llama4ForCausalLM", "FlexOlmoForCausalLM",
    "GraniteMoeHybridForCausalLM", "MellumForCausalLM", "Gemma3nForCausalLM",
    "Gemma4ForCausalLM", "Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM",
    "Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "FalconH1ForCausalLM", "NemotronHForCausalLM",
    "BambaForCausalLM", "JambaForCausalLM", "MambaForCausalLM", "FalconMambaForCausalLM",
    "Mamba2ForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM",
    "Glm4MoeLiteForCausalLM", "MiniCPM3ForCausalLM", "KimiLinearForCausalLM",
    "LongcatFlashForCausalLM", "NomicBertModel", "XLMRobertaModel",
]  # fmt: skip
_POOLS = marked({}, PoolingHead("mean"))
MORE: dict[str, dict[str, Any]] = {
    "NemotronHForCausalLM": {
        "hybrid_override_pattern": "ME*-", "n_group": 1, "moe_latent_size": 8,
    },
    "LongcatFlashForCausalLM": {
        "num_layers": 2, "ffn_hidden_size": 40, "n_routed_experts": 5, "moe_topk": 2,
        "zero_expert_num": 3,
    },
    "NomicBertModel": {**_POOLS, "moe_every_n_layers": 2},
    "XLMRobertaModel": {**_POOLS, "position_embedding_type": "rotary"},
}  # fmt: skip
"""Keys that a family needs to be built."""
KEYS = [
    *BASE, "architectures", "head_dim", "rope_theta", "rope_scaling", "rope_parameters",
    "rms_norm_eps", "hidden_act", "tie_word_embeddings", "attention_bias", "mlp_bias",
    "sliding_window", "use_sliding_window", "max_window_layers", "layer_types", "eos_token_id",
    "do_layer_norm_before", "word_embed_proj_dim", "_remove_final_layer_norm", "enable_bias",
    "activation_function", "n_inner", "scale_attn_weights", "layer_norm_epsilon",
    "original_max_position_embeddings", "quantization_config", "num_experts",
    "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "mlp_only_layers",
    "decoder_sparse_step", "norm_topk_prob", "shared_expert_intermediate_size", "clip_qkv",
    "shared_intermediate_size", "embedding_multiplier", "n_routed_experts", "n_shared_experts",
    "n_group", "topk_group", "first_k_dense_replace", "routed_scaling_factor", "rotary_dim",
    "moe_topk", "moe_num_experts", "moe_layer_end_index", "num_nextn_predict_layers",
    "router_jitter_noise", "no_rope_layers", "moe_layers", "attention_chunk_size", "floor_scale",
    "mlp_layer_types", "swiglu_limit", "num_kv_shared_layers", "hidden_size_per_layer_input",
    "vocab_size_per_layer_input", "altup_num_inputs", "altup_active_idx", "laurel_rank",
    "activation_sparsity_pattern", "global_head_dim", "num_global_key_value_heads",
    "attention_k_eq_v", "per_layer_config", "enable_moe_block", "top_k_experts",
    "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
    "linear_conv_kernel_dim", "full_attention_interval", "conv_L_cache", "full_attn_idxs",
    "block_ffn_dim_multiplier", "num_dense_layers", "mamba_n_heads", "mamba_d_head",
    "mamba_d_ssm", "mamba_n_groups", "mamba_d_state", "mamba_expand", "time_step_limit",
    "ssm_multipliers", "mlp_multipliers", "key_multiplier", "hybrid_override_pattern",
    "layers_block_type", "n_groups", "state_size", "time_step_rank", "expand", "num_heads",
    "attn_layer_period", "attn_layer_offset", "attn_layer_indices", "mamba_dt_rank",
    "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim",
    "topk_method", "linear_attn_config", "scale_depth", "dim_model_base", "num_layers",
    "ffn_hidden_size", "expert_ffn_hidden_size", "zero_expert_num", "zero_expert_type",
    "mla_scale_q_lora", "mla_scale_kv_lora", "router_bias", "moe_latent_size",
    "moe_shared_expert_intermediate_size", "mlp_hidden_act", "moe_every_n_layers", "moe_top_k",
    "num_shared_experts", "moe_normalize_expert_weights", "position_embedding_type",
    "rotary_emb_base", "type_vocab_size", "mlp_fc1_bias",
]  # fmt: skip
SCALING_KEYS = [
    "type", "rope_type", "factor", "rope_theta", "original_max_position_embeddings", "beta_fast",
    "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate", "low_freq_factor",
    "high_freq_factor", "partial_rotary_factor", "alpha",
]  # fmt: skip

numbers = st.one_of(
    st.integers(-3, 70),
    st.floats(),
    st.integers(-(10**40), 10**40),
    st.sampled_from([1e-300, 1e308]),
)
texts = st.sampled_from(["silu", "gelu", "linear", "dynamic", "yarn", "llama3", "default", "", "x"])
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
values = st.one_of(
    scalars,
    st.lists(scalars, max_size=3),
    st.dictionaries(st.sampled_from(SCALING_KEYS), scalars, max_size=6),
)


@settings(max_examples=examples(600), deadline=None)
@given(st.sampled_from(ARCHITECTURES), st.dictionaries(st.sampled_from(KEYS), values, max_size=4))
def test_damage_gives_a_program_or_our_own_error(architecture: str, damage: dict[str, Any]) -> None:
    config = {"architectures": [architecture], **BASE, **MORE.get(architecture, {}), **damage}
    try:
        program, facts = build_program(config), model_facts(config)
        name_map(config).canonical("model.norm.weight")
    except ModelError:
        return
    program.check()
    assert program.vocab_size == facts.vocab_size
    attending = len(program.attention_ops())
    if any(isinstance(memory.kept, (LatentGroup, StateGroup)) for memory in program.memories()):
        assert attending <= facts.num_layers  # other layers keep a state, or latents
    else:
        assert attending == facts.num_layers
    limit = program.position_limit
    assert limit is None or facts.max_model_len <= limit


@settings(max_examples=examples(600), deadline=None)
@given(
    st.sampled_from(["linear", "dynamic", "yarn", "llama3"]),
    st.dictionaries(st.sampled_from(SCALING_KEYS), numbers, max_size=6),
    st.sampled_from([2, 4, 6, 80]),
)
def test_rope_settings_give_finite_frequencies_or_our_own_error(
    kind: str, scaling: dict[str, Any], head_dim: int
) -> None:
    defaults = {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = {
        "architectures": ["LlamaForCausalLM"], **BASE, "head_dim": head_dim,
        "rope_scaling": {**defaults, **scaling, "rope_type": kind},
    }  # fmt: skip
    try:
        program = build_program(config)
        assert model_facts(config).max_model_len > 0
    except ModelError:
        return
    for op in program.ops:
        for value in getattr(op, "inv_freq", ()):
            assert 0 <= value < float("inf")


def test_more_experts_than_any_model_has_are_refused() -> None:
    """Before a tensor is named for each of them."""
    config = {
        **BASE, "architectures": ["OlmoeForCausalLM"], "num_hidden_layers": 1000,
        "num_experts": 1000,
    }  # fmt: skip
    with pytest.raises(CheckpointError, match=r"num_experts is 1000; .* from 1 to 65, for example"):
        build_program(config)
    config = {**BASE, "architectures": ["OlmoeForCausalLM"], "num_experts_per_tok": 6}
    with pytest.raises(CheckpointError, match=r"num_experts_per_tok is 6; .*at most the 5 experts"):
        build_program(config)
