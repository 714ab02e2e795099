"""Families without experts whose layers are like Llama's: RMS norms and a gated MLP, or nearly."""

from __future__ import annotations

import math

from quire.gguf.architectures.dense import BLOOM_PARTS, LLAMA_PARTS
from quire.gguf.architectures.expert_tensors import num_layers
from quire.gguf.architectures.facts import (
    biases,
    has_part,
    has_tensor,
    head_dim,
    layer_types,
    refused,
    same_base_in_windows,
    window,
)
from quire.gguf.architectures.row import Architecture, Config, Parts
from quire.gguf.keys import Keys

_EXAONE4_LAYERS = 64
_EXAONE4_WINDOW = 4096
_BAICHUAN_7B_LAYERS = 32
_BAICHUAN2_VOCAB = 125696
_XIELU = {"xielu.beta": 0.5, "xielu.eps": -1e-6}
_ROUNDING = 2**-8
"""To bfloat16."""

_FUSED_MLP: Parts = {**LLAMA_PARTS, "ffn_up": "mlp.gate_up_proj"}
_PHI3_PARTS: Parts = {**_FUSED_MLP, "attn_qkv": "self_attn.qkv_proj"}
_NORMS_AFTER: Parts = {
    **LLAMA_PARTS,
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GLM4_PARTS: Parts = {
    **_FUSED_MLP,
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
}
_CHATGLM_TOP = {
    "token_embd": "transformer.embedding.word_embeddings",
    "output_norm": "transformer.encoder.final_layernorm",
    "output": "transformer.output_layer",
}
_HUNYUAN_PARTS: Parts = {
    **LLAMA_PARTS,
    "attn_q_norm": "self_attn.query_layernorm",
    "attn_k_norm": "self_attn.key_layernorm",
}
_APERTUS_PARTS: Parts = {
    **LLAMA_PARTS,
    "attn_norm": "attention_layernorm",
    "ffn_norm": "feedforward_layernorm",
}
_XIELU_TENSORS = {"mlp.act_fn.alpha_p": "xielu.alpha_p", "mlp.act_fn.alpha_n": "xielu.alpha_n"}
_SEED_OSS_PARTS: Parts = {**LLAMA_PARTS, "post_attention_norm": "post_attention_layernorm"}


def _phi3(keys: Keys) -> Config:
    """llama.cpp leaves the window out, with a warning; the models were trained with it."""
    return {"sliding_window": window(keys)}


def _olmo3(keys: Keys) -> Config:
    same_base_in_windows(keys)
    return {"sliding_window": window(keys), "layer_types": layer_types(keys, 4)}


def _exaone4(keys: Keys) -> Config:
    """Files of the model of 32B may leave out its window, as llama.cpp knows it by its layers."""
    same_base_in_windows(keys)
    found = window(keys)
    if found is None and num_layers(keys) == _EXAONE4_LAYERS:
        found = _EXAONE4_WINDOW
    if found is None:
        return {"sliding_window": None}
    return {"sliding_window": found, "layer_types": layer_types(keys, 4)}


def _smollm3(keys: Keys) -> Config:
    """Files do not say which layers do not rotate: each fourth, as in llama.cpp."""
    return {**biases(keys), "no_rope_layer_interval": 4}


def _minicpm(keys: Keys) -> Config:
    """Factors of MiniCPM. Older files have none of the three; all models published then have the
    same: `scale_emb` 12, `scale_depth` 1.4, `dim_model_base` 256."""
    names = ("embedding_scale", "residual_scale", "logit_scale")
    if all(keys.value(f"{{arch}}.{name}") is None for name in names):
        hidden_size = keys.whole("{arch}.embedding_length")
        factors = [12.0, 1.4 * num_layers(keys) ** -0.5, hidden_size / 256]
    else:
        factors = [keys.number(f"{{arch}}.{name}") for name in names]
    return {
        "embedding_multiplier": factors[0],
        "residual_multiplier": factors[1],
        "attention_multiplier": head_dim(keys) ** -0.5,
        "logits_scaling": factors[2],
    }


def _glm(keys: Keys) -> Config:
    if any(keys.value("{arch}.rope.dimension_sections") or ()):
        raise refused(keys, "a rotation for images (rope.dimension_sections)")
    return {"attention_bias": has_part(keys, "attn_q.bias")}


def _chatglm(keys: Keys) -> Config:
    if keys.whole("{arch}.rope.dimension_count", 0) * 2 != head_dim(keys):
        raise keys.error("{arch}.rope.dimension_count", "half of a head")
    scaling = keys.text("{arch}.rope.scaling.type")
    if scaling not in (None, "none") or has_tensor(keys, "rope_freqs.weight"):
        raise refused(keys, "a rope scaling")
    return {
        "rope_ratio": keys.number("{arch}.rope.freq_base", 10000.0) / 10000.0,
        "add_qkv_bias": has_part(keys, "attn_qkv.bias"),
        "add_bias_linear": has_part(keys, "attn_output.bias"),
    }


def _ernie(keys: Keys) -> Config:
    return {"use_bias": has_part(keys, "attn_q.bias")}


def _hunyuan(keys: Keys) -> Config:
    """The stretch of the rotation's base is part of the base in files."""
    return {
        "use_qk_norm": has_part(keys, "attn_q_norm.weight"),
        "attention_bias": has_part(keys, "attn_q.bias"),
    }


def _seed_oss(keys: Keys) -> Config:
    return {**biases(keys), "attention_out_bias": has_part(keys, "attn_output.bias")}


def _apertus(keys: Keys) -> Config:
    """Two of the four numbers of the activation are learned."""
    for key, wanted in _XIELU.items():
        for found in keys.numbers(key, float, num_layers(keys)) or [math.nan]:
            if not math.isclose(found, wanted, rel_tol=_ROUNDING):
                raise keys.error(key, f"{wanted:g} in every layer")
    return {"hidden_act": "xielu", **biases(keys)}


def _arcee(keys: Keys) -> Config:
    return {**biases(keys), "hidden_act": "relu2"}


def _mistral3(keys: Keys) -> Config:
    """Ministral 3 scales q by its position; Mistral Small 3.1 and 3.2 do not."""
    theta = keys.number("{arch}.rope.freq_base", 10000.0)
    beta = keys.number("{arch}.attention.temperature_scale", 0.0)
    if beta == 0.0:
        return {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}
    original = keys.whole("{arch}.rope.scaling.original_context_length")
    scaling = {"llama_4_scaling_beta": beta, "original_max_position_embeddings": original}
    return {"rope_parameters": {"rope_theta": theta, **scaling}}


def _baichuan(keys: Keys) -> Config:
    if keys.whole("{arch}.block_count") != _BAICHUAN_7B_LAYERS:
        raise refused(keys, "another number of layers than the 32 of 7B, which means ALiBi")
    table = keys.tensor("token_embd.weight")
    if table is not None and table.shape[0] == _BAICHUAN2_VOCAB:
        raise refused(keys, "Baichuan 2's head, whose rows have length 1")
    return {}


_LLAMA = ("LlamaForCausalLM", "llama", LLAMA_PARTS)
"""Models that compute what Llama does, and have names of their own in their checkpoints."""

OLMO3 = Architecture("Olmo3ForCausalLM", "olmo3", _NORMS_AFTER, config=_olmo3)
"""Files of architecture olmo2 that have windows."""
CHATGLM = Architecture(
    "ChatGLMModel",
    "chatglm",
    BLOOM_PARTS,
    top=_CHATGLM_TOP,
    layers="transformer.encoder.layers.",
    config=_chatglm,
)
"""Files of architecture chatglm that have q, k and v in one tensor."""

LLAMA_LIKE: dict[str, Architecture] = {
    "phi3": Architecture("Phi3ForCausalLM", "phi3", _PHI3_PARTS, config=_phi3),
    "olmo2": Architecture("Olmo2ForCausalLM", "olmo2", _NORMS_AFTER),
    "exaone": Architecture(*_LLAMA),
    "exaone4": Architecture("Exaone4ForCausalLM", "exaone4", _NORMS_AFTER, config=_exaone4),
    "smollm3": Architecture(
        "SmolLM3ForCausalLM", "smollm3", LLAMA_PARTS, has_paired_rows=True, config=_smollm3
    ),
    "internlm2": Architecture(*_LLAMA, has_paired_rows=True),
    "xverse": Architecture(*_LLAMA, has_paired_rows=True),
    "minicpm": Architecture(
        "GraniteForCausalLM", "granite", LLAMA_PARTS, has_paired_rows=True, config=_minicpm
    ),
    "glm4": Architecture("Glm4ForCausalLM", "glm4", _GLM4_PARTS, config=_glm),
    "chatglm": Architecture("GlmForCausalLM", "glm", _FUSED_MLP, config=_glm),
    "ernie4_5": Architecture("Ernie4_5ForCausalLM", "ernie4_5", LLAMA_PARTS, config=_ernie),
    "hunyuan-dense": Architecture(
        "HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", _HUNYUAN_PARTS, config=_hunyuan
    ),
    "pangu-embedded": Architecture(*_LLAMA, config=biases),
    "seed_oss": Architecture("SeedOssForCausalLM", "seed_oss", _SEED_OSS_PARTS, config=_seed_oss),
    "apertus": Architecture(
        "ApertusForCausalLM", "apertus", _APERTUS_PARTS, numbers=_XIELU_TENSORS, config=_apertus
    ),
    "arcee": Architecture(
        "ArceeForCausalLM", "arcee", LLAMA_PARTS, has_paired_rows=True, config=_arcee
    ),
    "mistral3": Architecture(
        "Ministral3ForCausalLM", "ministral3", LLAMA_PARTS, has_paired_rows=True, config=_mistral3
    ),
    "baichuan": Architecture(*_LLAMA, has_paired_rows=True, config=_baichuan),
}
