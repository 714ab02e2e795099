"""Tiny models without experts, by the names that GGUF files have for their architectures."""

from __future__ import annotations

from typing import Any

import transformers
from model_cases import Case

_PLAIN = {"rope_type": "default", "rope_theta": 2e4}
_HALF = {**_PLAIN, "partial_rotary_factor": 0.5}
_QUARTER = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
_LONG = {
    "rope_type": "longrope", "rope_theta": 1e4,
    "long_factor": [1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0],
    "short_factor": [1.0, 1.1, 1.1, 1.2, 1.3, 1.5, 1.7, 2.0],
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e6, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
_YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
    "original_max_position_embeddings": 20,
}  # fmt: skip
_MINISTRAL = {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5}


def dense(name: str, config_class: Any, **settings: Any) -> Case:
    shape = {
        "vocab_size": 288, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
        "initializer_range": 0.15, "rope_parameters": _PLAIN, "tie_word_embeddings": False,
        "eos_token_id": None, "bos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    return Case(name, config_class, {**shape, **settings})


def _old(name: str, config_class: Any, **settings: Any) -> Case:
    """Of the keys that GPT-2 began."""
    shape = {
        "vocab_size": 288, "n_layer": 2, "n_head": 4, "hidden_size": 64, "initializer_range": 0.15,
        "eos_token_id": None, "bos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    return Case(name, config_class, {**shape, **settings})


LLAMA, GRANITE = transformers.LlamaConfig, transformers.GraniteConfig
_PHI3 = {"original_max_position_embeddings": 128, "pad_token_id": 0}
_FACTORS = {"embedding_multiplier": 3.0, "residual_multiplier": 0.375, "logits_scaling": 2.5}
_MPT = {
    "d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 128, "vocab_size": 288,
    "initializer_range": 0.15, "eos_token_id": None, "bos_token_id": None, "pad_token_id": None,
}  # fmt: skip
DENSE = [
    dense("phi3", transformers.Phi3Config, **_PHI3, sliding_window=19),
    dense("phi3:tied", transformers.Phi3Config, **_PHI3, tie_word_embeddings=True,
          rope_parameters={**_PLAIN, "partial_rotary_factor": 0.75}),
    dense("phi3:long", transformers.Phi3Config, **{**_PHI3, "original_max_position_embeddings": 20},
          rope_parameters=_LONG),
    dense("phi3:short", transformers.Phi3Config, **_PHI3, rope_parameters=_LONG),
    dense("phi2", transformers.PhiConfig, intermediate_size=256, num_key_value_heads=4,
          rope_parameters={**_HALF, "rope_theta": 1e4}),
    dense("starcoder2", transformers.Starcoder2Config, use_bias=True, sliding_window=None),
    dense("starcoder2:tied", transformers.Starcoder2Config, use_bias=False, sliding_window=None,
          tie_word_embeddings=True),
    dense("stablelm", transformers.StableLmConfig, use_qkv_bias=True, rope_parameters=_QUARTER),
    dense("stablelm:12B", transformers.StableLmConfig, qk_layernorm=True,
          use_parallel_residual=True, rope_parameters=_QUARTER),
    dense("orion", transformers.StableLmConfig, rope_parameters={
        **_QUARTER, "partial_rotary_factor": 1.0}),
    dense("gptneox", transformers.GPTNeoXConfig, num_key_value_heads=4,
          rope_parameters=_QUARTER),
    dense("gptneox:serial", transformers.GPTNeoXConfig, num_key_value_heads=4,
          use_parallel_residual=False,
          rope_parameters={**_QUARTER, "partial_rotary_factor": 1.0}),
    _old("falcon:7B", transformers.FalconConfig, num_attention_heads=4, num_hidden_layers=2,
         multi_query=True, bias=False, tie_word_embeddings=True),
    _old("falcon:40B", transformers.FalconConfig, num_attention_heads=4, num_hidden_layers=2,
         num_kv_heads=2, new_decoder_architecture=True, bias=False, tie_word_embeddings=False),
    _old("falcon:11B", transformers.FalconConfig, num_attention_heads=4, num_hidden_layers=2,
         num_kv_heads=2, new_decoder_architecture=True, num_ln_in_parallel_attn=1, bias=False,
         tie_word_embeddings=True),
    _old("bloom", transformers.BloomConfig),
    Case("mpt", transformers.MptConfig, _MPT),
    Case("mpt:clipped", transformers.MptConfig, {**_MPT, "attn_config": {
        "alibi": True, "alibi_bias_max": 8, "clip_qkv": 0.5}}),
    _old("gpt2", transformers.GPT2Config, n_embd=64, n_positions=128),
    dense("olmo", transformers.OlmoConfig, clip_qkv=0.75),
    dense("olmo2", transformers.Olmo2Config),
    dense("olmo2:olmo3", transformers.Olmo3Config, num_hidden_layers=4, sliding_window=17,
          rope_parameters={"full_attention": _YARN, "sliding_attention": {
              "rope_type": "default", "rope_theta": 1e4}}),
    dense("command-r", transformers.CohereConfig, logit_scale=0.5, tie_word_embeddings=True),
    dense("command-r:plus", transformers.CohereConfig, use_qk_norm=True, logit_scale=0.5,
          tie_word_embeddings=True),
    dense("cohere2", transformers.Cohere2Config, num_hidden_layers=5, sliding_window=17,
          logit_scale=0.5, tie_word_embeddings=True),
    dense("nemotron", transformers.NemotronConfig, rope_parameters=_HALF),
    dense("exaone", LLAMA, tie_word_embeddings=True),
    dense("exaone4", transformers.Exaone4Config, sliding_window=None, layer_types=[
        "full_attention"] * 2),
    dense("exaone4:32B", transformers.Exaone4Config, num_hidden_layers=4, sliding_window=17,
          layer_types=["sliding_attention", "full_attention"] * 2),
    dense("smollm3", transformers.SmolLM3Config, num_hidden_layers=5),
    dense("internlm2", LLAMA, head_dim=16),
    dense("xverse", LLAMA),
    dense("baichuan", LLAMA, num_hidden_layers=32, hidden_size=32, intermediate_size=32,
          num_key_value_heads=4),
    dense("minicpm", GRANITE, attention_multiplier=0.25, **_FACTORS),
    dense("minicpm:longrope", GRANITE, attention_multiplier=0.25, **_FACTORS,
          rope_parameters={**_LONG, "original_max_position_embeddings": 128}),
    dense("glm4", transformers.Glm4Config, head_dim=16, attention_bias=True, rope_parameters=_HALF),
    dense("chatglm", transformers.GlmConfig, head_dim=16, attention_bias=True,
          rope_parameters=_HALF),
    dense("chatglm:fused", transformers.GlmConfig, head_dim=16, attention_bias=True,
          rope_parameters=_HALF),
    dense("ernie4_5", transformers.Ernie4_5Config, head_dim=16, use_bias=False),
    dense("hunyuan-dense", transformers.HunYuanDenseV1Config, head_dim=16, rope_parameters={
        "rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0}),
    dense("seed_oss", transformers.SeedOssConfig, head_dim=16, attention_bias=True,
          attention_out_bias=True),
    dense("apertus", transformers.ApertusConfig, rope_parameters=_LLAMA3),
    dense("arcee", transformers.ArceeConfig, head_dim=16),
    dense("pangu-embedded", LLAMA, head_dim=16, attention_bias=True,
          rope_parameters={**_YARN, "attention_factor": 0.75}),
    dense("qwen2vl", transformers.Qwen2Config),
    dense("qwen3vl", transformers.Qwen3Config, head_dim=16),
    dense("mistral3:small", transformers.MistralConfig, head_dim=16, sliding_window=None),
    dense("mistral3", transformers.Ministral3Config, head_dim=16, rope_parameters=_MINISTRAL),
]  # fmt: skip
