"""Architectures without experts that Llama's code began: Llama, Granite, Qwen and Gemma."""

from __future__ import annotations

from quire.errors import UnsupportedModelError
from quire.gguf.architectures.facts import biases, has_part, head_dim
from quire.gguf.architectures.row import TOP_PARTS, Architecture, Config
from quire.gguf.keys import Keys

LLAMA_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
BLOOM_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attention.query_key_value",
    "attn_output": "self_attention.dense",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
"""ChatGLM has the same names, GPT-NeoX and Falcon most of them."""
DENSE_FOLDERS = {"dense_2": "2_Dense", "dense_3": "3_Dense"}
"""The layers after the mean of an embedder, and their modules in sentence-transformers."""
GEMMA2_PARTS = {
    **LLAMA_PARTS,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def granite_config(keys: Keys) -> Config:
    """Biases and Granite's four factors."""
    if keys.flag("{arch}.rope.scaling.finetuned") is False:
        raise UnsupportedModelError(
            f"{keys.path}: Granite models without rotary embeddings are not read from GGUF files; "
            "the checkpoint in safetensors is"
        )
    return {
        **biases(keys),
        "embedding_multiplier": keys.number("{arch}.embedding_scale", 1.0),
        "residual_multiplier": keys.number("{arch}.residual_scale", 1.0),
        "attention_multiplier": keys.number("{arch}.attention.scale", head_dim(keys) ** -0.5),
        "logits_scaling": keys.number("{arch}.logit_scale"),
    }


def gemma_config(keys: Keys) -> Config:  # noqa: ARG001
    """The activations of all Gemma models."""
    return {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"}


def _gemma2(keys: Keys) -> Config:
    return {
        **gemma_config(keys),
        **_query_scale(keys, 46),
        "sliding_window": keys.whole("{arch}.attention.sliding_window", 4096),
        "attn_logit_softcapping": keys.number("{arch}.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": keys.number("{arch}.final_logit_softcapping", 30.0),
    }


def _gemma3(keys: Keys) -> Config:
    cap = keys.value("{arch}.final_logit_softcapping")
    return {
        **gemma_config(keys),
        **_query_scale(keys, 62),
        "sliding_window": keys.whole("{arch}.attention.sliding_window", 1024),
        "rope_local_base_freq": keys.number("{arch}.rope.freq_base_swa", 10000.0),
        "rope_theta": keys.number("{arch}.rope.freq_base", 1e6),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": keys.number("{arch}.final_logit_softcapping") if cap else None,
    }


def _gemma_embedding(keys: Keys) -> Config:
    """Windows reach as far in each direction as transformers makes of the same number."""
    return {**_gemma3(keys), "use_bidirectional_attention": True}


def _query_scale(keys: Keys, layers_of_27b: int) -> Config:
    """The file does not say it: llama.cpp knows the models of 27B by their layers."""
    heads, hidden = keys.whole("{arch}.attention.head_count"), keys.whole("{arch}.embedding_length")
    if keys.whole("{arch}.block_count") == layers_of_27b and heads > 0:
        return {"query_pre_attn_scalar": hidden // heads}
    return {"query_pre_attn_scalar": keys.whole("{arch}.attention.key_length", 256)}


def _qwen3(keys: Keys) -> Config:
    return {"attention_bias": has_part(keys, "attn_q.bias")}


DENSE: dict[str, Architecture] = {
    "llama": Architecture(
        "LlamaForCausalLM", "llama", LLAMA_PARTS, has_paired_rows=True, config=biases
    ),
    "granite": Architecture(
        "GraniteForCausalLM", "granite", LLAMA_PARTS, has_paired_rows=True, config=granite_config
    ),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2", LLAMA_PARTS),
    "qwen2vl": Architecture("Qwen2ForCausalLM", "qwen2", LLAMA_PARTS),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3", LLAMA_PARTS, config=_qwen3),
    "qwen3vl": Architecture("Qwen3ForCausalLM", "qwen3", LLAMA_PARTS, config=_qwen3),
    "gemma": Architecture(
        "GemmaForCausalLM", "gemma", LLAMA_PARTS, norm_offset=1.0, config=gemma_config
    ),
    "gemma2": Architecture(
        "Gemma2ForCausalLM", "gemma2", GEMMA2_PARTS, norm_offset=1.0, config=_gemma2
    ),
    "gemma3": Architecture(
        "Gemma3ForCausalLM", "gemma3_text", GEMMA2_PARTS, norm_offset=1.0, config=_gemma3
    ),
    "gemma-embedding": Architecture(
        "Gemma3TextModel",
        "gemma3_text",
        GEMMA2_PARTS,
        top={**TOP_PARTS, **{name: f"{folder}.linear" for name, folder in DENSE_FOLDERS.items()}},
        norm_offset=1.0,
        config=_gemma_embedding,
    ),
}
