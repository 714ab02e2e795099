"""Small models of families that differ in their ops, as keys over `tiny_checkpoint.CONFIG`."""

from __future__ import annotations

from typing import Any

FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {"architectures": ["Qwen3ForCausalLM"]},
    "qwen2_windows": {
        "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"], "query_pre_attn_scalar": 16,
        "sliding_window": 20, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True,
    },
    "qwen2_moe": {
        "architectures": ["Qwen2MoeForCausalLM"], "num_experts": 6, "num_experts_per_tok": 3,
        "moe_intermediate_size": 48, "shared_expert_intermediate_size": 80,
    },
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_head": 4, "n_layer": 2,
        "n_positions": 128, "layer_norm_epsilon": 1e-5, "activation_function": "gelu",
    },
    "gemma3n": {
        "architectures": ["Gemma3nForCausalLM"], "num_hidden_layers": 4, "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 280, "laurel_rank": 8,
        "activation_sparsity_pattern": [0.9, 0.0, 0.0, 0.5],
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "gemma4": {
        "architectures": ["Gemma4ForCausalLM"], "num_hidden_layers": 4, "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 288,
        "global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
        "enable_moe_block": True, "num_experts": 6, "top_k_experts": 3,
        "moe_intermediate_size": 48, "hidden_activation": "gelu_pytorch_tanh",
    },
    "mpt": {
        "architectures": ["MptForCausalLM"], "d_model": 64, "n_heads": 4, "n_layers": 2,
        "max_seq_len": 128, "expansion_ratio": 4, "attn_config": {"alibi": True}, "no_bias": True,
    },
}  # fmt: skip
