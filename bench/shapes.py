"""Writes the config.json of a known model's shape, to measure speed with random weights.

    python bench/shapes.py olmoe-1b-7b DIR
    python bench/peers.py --model DIR --workloads decode,prefill-512,batch-32
        --option quire='{"load_format": "dummy", "skip_tokenizer_init": true,
                         "quantization": "int8_w8a8"}'
        --peer vllm=/venvs/vllm/bin/python
        --option vllm='{"load_format": "dummy", "skip_tokenizer_init": true}'

Every engine makes its own random weights, so nothing of the model's size is on the disk. Where a
router's weights are random, tokens go to all experts alike. For an engine that needs a file,
`gguf_shapes.py` writes one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_COMMON: Mapping[str, Any] = {
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16",
    "max_position_embeddings": 4096, "attention_bias": False, "initializer_range": 0.02,
    "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 1,
}  # fmt: skip

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024,
        "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "rope_theta": 1000000.0, "tie_word_embeddings": True,
    },
    "llama-3.2-1b": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048,
        "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "tie_word_embeddings": True,
    },
    "qwen2.5-1.5b": {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 1536,
        "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
        "num_key_value_heads": 2, "vocab_size": 151936, "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
    },
    "gemma-3-1b": {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 1152,
        "intermediate_size": 6912, "num_hidden_layers": 26, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144,
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256,
        "sliding_window": 512, "sliding_window_pattern": 6, "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0, "tie_word_embeddings": True,
    },
    "gemma-2-2b": {
        "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_size": 2304,
        "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256000,
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256,
        "sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "rope_theta": 10000.0, "tie_word_embeddings": True,
    },
    "olmoe-1b-7b": {
        "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "hidden_size": 2048,
        "intermediate_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16,
        "num_key_value_heads": 16, "vocab_size": 50304, "num_experts": 64,
        "num_experts_per_tok": 8, "norm_topk_prob": False, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": False,
    },
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
        "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8,
        "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "rope_theta": 1000000.0, "tie_word_embeddings": False,
    },
    "qwen3.5-0.8b": {
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_size": 1024,
        "intermediate_size": 3584, "num_hidden_layers": 24, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320,
        "linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
        "partial_rotary_factor": 0.25, "rope_theta": 1e7, "tie_word_embeddings": True,
    },
    "qwen3.5-4b": {
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_size": 2560,
        "intermediate_size": 9216, "num_hidden_layers": 32, "num_attention_heads": 16,
        "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 248320,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
        "partial_rotary_factor": 0.25, "rope_theta": 1e7, "tie_word_embeddings": True,
    },
    "lfm2-1.2b": {
        "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "hidden_size": 2048,
        "block_dim": 2048, "conv_dim": 2048,  # vLLM reads these
        "intermediate_size": 12288, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 65536, "conv_L_cache": 3, "conv_bias": False,
        "block_auto_adjust_ff_dim": True, "block_multiple_of": 256, "norm_eps": 1e-5,
        "block_ffn_dim_multiplier": 1.0, "rope_theta": 1000000.0, "tie_word_embeddings": True,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    },
    "granite-4-h-tiny": {
        "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid",
        "hidden_size": 1536, "intermediate_size": 512, "shared_intermediate_size": 1024,
        "num_hidden_layers": 40, "num_attention_heads": 12, "num_key_value_heads": 4,
        "vocab_size": 100352, "num_local_experts": 64, "num_experts_per_tok": 6,
        "mamba_n_heads": 48, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1,
        "mamba_d_conv": 4, "mamba_expand": 2, "position_embedding_type": "nope",
        "layer_types": ["attention" if i % 10 == 5 else "mamba" for i in range(40)],
        "embedding_multiplier": 12.0, "attention_multiplier": 0.0078125,
        "residual_multiplier": 0.22, "logits_scaling": 6.0, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    },
    "qwen3-next-4-layers": {
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 2048,
        "intermediate_size": 5120, "moe_intermediate_size": 512, "num_hidden_layers": 4,
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
        "vocab_size": 151936, "num_experts": 512, "num_experts_per_tok": 10,
        "shared_expert_intermediate_size": 512, "norm_topk_prob": True, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4, "partial_rotary_factor": 0.25, "rope_theta": 1e7,
        "tie_word_embeddings": False,
    },
    "mamba-2.8b": {
        "architectures": ["MambaForCausalLM"], "model_type": "mamba", "hidden_size": 2560,
        "intermediate_size": 5120, "num_hidden_layers": 64, "state_size": 16, "conv_kernel": 4,
        "time_step_rank": 160, "vocab_size": 50280, "layer_norm_epsilon": 1e-5,
        "use_conv_bias": True, "use_bias": False, "tie_word_embeddings": True,
    },
    "mamba2-2.7b": {
        "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "hidden_size": 2560,
        "num_hidden_layers": 64, "num_heads": 80, "head_dim": 64, "state_size": 128,
        "n_groups": 1, "conv_kernel": 4, "expand": 2, "vocab_size": 50288,
        "layer_norm_epsilon": 1e-5, "use_conv_bias": True, "use_bias": False,
        "tie_word_embeddings": True,
    },
    "deepseek-v2-lite": {
        "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2",
        "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
        "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
        "vocab_size": 102400, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2,
        "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1,
        "norm_topk_prob": False, "routed_scaling_factor": 1.0, "topk_method": "greedy",
        "rope_theta": 10000.0, "tie_word_embeddings": False,
    },
}  # fmt: skip


def config_of(name: str) -> dict[str, Any]:
    """The config.json of a shape. Raises KeyError for an unknown one."""
    return {**_COMMON, **SHAPES[name]}


def write_shape(name: str, directory: Path, **changes: Any) -> Path:
    """Writes config.json alone, with some keys changed; returns its path. Raises KeyError for an
    unknown shape."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "config.json"
    path.write_text(json.dumps({**config_of(name), **changes}, indent=1))
    return path


def main() -> int:
    """Writes the shape that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("directory", type=Path)
    args = parser.parse_args()
    print(write_shape(args.shape, args.directory))
    return 0


if __name__ == "__main__":
    sys.exit(main())
