"""Configs of published models, as they stand in the hub: parameter counts and contexts known."""

from __future__ import annotations

from typing import Any

import pytest

from quire.models import build_program, model_facts

GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new", "n_ctx": 1024,
    "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257,
    "layer_norm_epsilon": 1e-5, "eos_token_id": 50256,
}  # fmt: skip
OPT_350M = {
    "architectures": ["OPTForCausalLM"], "activation_function": "relu", "hidden_size": 1024,
    "do_layer_norm_before": False, "_remove_final_layer_norm": False, "ffn_dim": 4096,
    "max_position_embeddings": 2048, "num_attention_heads": 16, "num_hidden_layers": 24,
    "word_embed_proj_dim": 512, "vocab_size": 50272,
}  # fmt: skip
OPT_125M = {
    "architectures": ["OPTForCausalLM"], "activation_function": "relu", "hidden_size": 768,
    "do_layer_norm_before": True, "_remove_final_layer_norm": False, "ffn_dim": 3072,
    "max_position_embeddings": 2048, "num_attention_heads": 12, "num_hidden_layers": 12,
    "word_embed_proj_dim": 768, "vocab_size": 50272,
}  # fmt: skip
LLAMA_2_7B = {
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 11008, "max_position_embeddings": 4096, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 32, "pretraining_tp": 1,
    "rms_norm_eps": 1e-5, "rope_scaling": None, "tie_word_embeddings": False, "vocab_size": 32000,
}  # fmt: skip
LLAMA_3_2_1B = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "head_dim": 64,
    "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192,
    "max_position_embeddings": 131072, "mlp_bias": False, "num_attention_heads": 32,
    "num_hidden_layers": 16, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": True, "vocab_size": 128256,
}  # fmt: skip
MISTRAL_7B = {
    "architectures": ["MistralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False,
    "vocab_size": 32000,
}  # fmt: skip
QWEN_2_5_HALF_B = {
    "architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "hidden_size": 896,
    "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24,
    "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "sliding_window": 32768,
    "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN_3_HALF_B = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072,
    "max_position_embeddings": 40960, "max_window_layers": 28, "num_attention_heads": 16,
    "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
    "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip

GPT_OSS_20B = {
    "architectures": ["GptOssForCausalLM"], "attention_bias": True, "head_dim": 64,
    "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096,
    "intermediate_size": 2880, "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072, "num_attention_heads": 64, "num_experts_per_tok": 4,
    "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32,
    "quantization_config": {"quant_method": "mxfp4"}, "rms_norm_eps": 1e-5,
    "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "rope_type": "yarn",
                     "original_max_position_embeddings": 4096, "truncate": False},
    "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0,
    "tie_word_embeddings": False, "vocab_size": 201088,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "num_parameters", "max_model_len"),
    [
        pytest.param(GPT2, 124_439_808, 1024, id="gpt2"),
        pytest.param(OPT_125M, 125_239_296, 2048, id="opt-125m"),
        pytest.param(OPT_350M, 331_196_416, 2048, id="opt-350m"),
        pytest.param(LLAMA_2_7B, 6_738_415_616, 4096, id="llama-2-7b"),
        pytest.param(LLAMA_3_2_1B, 1_235_814_400, 131072, id="llama-3.2-1b"),
        pytest.param(MISTRAL_7B, 7_241_732_096, 32768, id="mistral-7b"),
        pytest.param(QWEN_2_5_HALF_B, 494_032_768, 32768, id="qwen2.5-0.5b"),
        pytest.param(QWEN_3_HALF_B, 596_049_920, 40960, id="qwen3-0.6b"),
        pytest.param(GPT_OSS_20B, 20_914_757_184, 131072, id="gpt-oss-20b"),
    ],
)
def test_parameters_and_context(
    config: dict[str, Any], num_parameters: int, max_model_len: int
) -> None:
    program = build_program(config)
    assert sum(param.num_elements for param in program.params()) == num_parameters
    assert model_facts(config).max_model_len == max_model_len


def test_only_mistral_has_a_window() -> None:
    assert model_facts(MISTRAL_7B).sliding_window == 4096
    assert model_facts(QWEN_2_5_HALF_B).sliding_window is None
