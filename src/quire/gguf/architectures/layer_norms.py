"""Architectures with layer norms: Phi 1 and 2, StarCoder 2, StableLM, GPT-NeoX, Falcon, BLOOM, MPT,
GPT-2, OLMo 1, Command R and Nemotron-4.
"""

from __future__ import annotations

from typing import Any

from quire.gguf.architectures.dense import BLOOM_PARTS, LLAMA_PARTS
from quire.gguf.architectures.facts import (
    has_part,
    layer_types,
    refused,
    same_base_in_windows,
    window,
)
from quire.gguf.architectures.row import Architecture, Config, Parts
from quire.gguf.keys import Keys

_OLMO_EPS = 1e-5

_PHI2_PARTS: Parts = {
    **LLAMA_PARTS,
    "attn_output": "self_attn.dense",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_PHI2_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.final_layernorm",
    "output": "lm_head",
}
_STARCODER2_PARTS: Parts = {**LLAMA_PARTS, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
_STABLELM_PARTS: Parts = {
    **LLAMA_PARTS,
    "attn_q_norm": "self_attn.q_layernorm.norms.*",
    "attn_k_norm": "self_attn.k_layernorm.norms.*",
}
_BLOOM_TOP = {
    "token_embd": "transformer.word_embeddings",
    "token_embd_norm": "transformer.word_embeddings_layernorm",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
_NEOX_PARTS: Parts = {
    **BLOOM_PARTS,
    "attn_qkv": "attention.query_key_value",
    "attn_output": "attention.dense",
}
_NEOX_TOP = {
    "token_embd": "gpt_neox.embed_in",
    "output_norm": "gpt_neox.final_layer_norm",
    "output": "embed_out",
}
_FALCON_PARTS: Parts = {
    "attn_norm": "input_layernorm",
    **{name: part for name, part in BLOOM_PARTS.items() if "norm" not in name},
}
_FALCON_TOP = {name: part for name, part in _BLOOM_TOP.items() if name != "token_embd_norm"}
_MPT_PARTS: Parts = {
    "attn_norm": "norm_1",
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.out_proj",
    "ffn_norm": "norm_2",
    "ffn_up": "ffn.up_proj",
    "ffn_down": "ffn.down_proj",
}
_MPT_TOP = {
    "token_embd": "transformer.wte",
    "output_norm": "transformer.norm_f",
    "output": "lm_head",
}
_GPT2_PARTS: Parts = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
_GPT2_TOP = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}


def _phi2(keys: Keys) -> Config:  # noqa: ARG001
    return {"hidden_act": "gelu_new"}


def _starcoder2(keys: Keys) -> Config:
    """Files do not have its window, and llama.cpp computes without one."""
    return {
        "hidden_act": "gelu_pytorch_tanh",
        "use_bias": has_part(keys, "attn_q.bias"),
        "sliding_window": window(keys),
    }


def _stablelm(keys: Keys) -> Config:
    """Without a second norm, attention and MLP read the same row, whatever the keys say."""
    return {
        "use_parallel_residual": not has_part(keys, "ffn_norm.weight"),
        "use_qkv_bias": has_part(keys, "attn_q.bias"),
        "qk_layernorm": has_part(keys, "attn_q_norm.weight"),
    }


def _orion(keys: Keys) -> Config:  # noqa: ARG001
    """StableLM's computation, with the whole of a head rotated."""
    return {"use_parallel_residual": False, "use_qkv_bias": False, "qk_layernorm": False}


def _neox(keys: Keys) -> Config:
    parallel = keys.flag("{arch}.use_parallel_residual")
    if parallel is None:
        raise keys.error("{arch}.use_parallel_residual", "true or false")
    return {
        "use_parallel_residual": parallel,
        "attention_bias": has_part(keys, "attn_qkv.bias"),
        "hidden_act": "gelu",
    }


def _falcon(keys: Keys) -> Config:
    """7B has one kv head; the others, of the newer kind, have several."""
    kv_heads = keys.whole("{arch}.attention.head_count_kv")
    num_norms = 2 if has_part(keys, "attn_norm_2.weight") else 1
    return {
        "new_decoder_architecture": kv_heads > 1 or num_norms > 1,
        "num_ln_in_parallel_attn": num_norms,
        "num_kv_heads": kv_heads,
        "parallel_attn": True,
        "alibi": False,
        "bias": False,
        "hidden_act": "gelu",
    }


def _times_hidden(keys: Keys) -> int:
    """Width of the MLP, in widths of a row."""
    hidden = keys.whole("{arch}.embedding_length")
    inner = keys.whole("{arch}.feed_forward_length", 4 * hidden)
    if hidden < 1 or inner < hidden or inner % hidden:
        raise keys.error("{arch}.feed_forward_length", f"a multiple of the {hidden} of a row")
    return inner // hidden


def _bloom(keys: Keys) -> Config:
    if _times_hidden(keys) != 4:
        raise keys.error("{arch}.feed_forward_length", "four times the embedding_length")
    return {}


def _mpt(keys: Keys) -> Config:
    bias = keys.number("{arch}.attention.max_alibi_bias", 0.0)
    if bias == 0.0:
        raise refused(keys, "learned positions (attention.max_alibi_bias is 0)")
    clip = keys.number("{arch}.attention.clamp_kqv", 0.0)
    return {
        "expansion_ratio": _times_hidden(keys),
        "attn_config": {"alibi": True, "alibi_bias_max": bias, "clip_qkv": clip or None},
    }


def _gpt2(keys: Keys) -> Config:
    hidden = keys.whole("{arch}.embedding_length")
    return {
        "n_layer": keys.whole("{arch}.block_count"),
        "n_embd": hidden,
        "n_inner": keys.whole("{arch}.feed_forward_length", 4 * hidden),
        "n_head": keys.whole("{arch}.attention.head_count"),
        "n_positions": keys.whole("{arch}.context_length"),
        "layer_norm_epsilon": keys.number("{arch}.attention.layer_norm_epsilon"),
        "activation_function": "gelu_new",
        "transposed_weights": False,
    }


def _olmo(keys: Keys) -> Config:
    """The file has the eps of all published models, and Quire knows no other."""
    key = "{arch}.attention.layer_norm_epsilon"
    if keys.number(key) != _OLMO_EPS:
        raise keys.error(key, f"{_OLMO_EPS:g}")
    clip = keys.number("{arch}.attention.clamp_kqv", 0.0)
    return {"clip_qkv": clip or None}


def _command_r(keys: Keys) -> Config:
    return {
        "logit_scale": keys.number("{arch}.logit_scale"),
        "use_qk_norm": has_part(keys, "attn_q_norm.weight"),
    }


def _cohere2(keys: Keys) -> Config:
    same_base_in_windows(keys)
    return {
        "logit_scale": keys.number("{arch}.logit_scale"),
        "sliding_window": keys.whole("{arch}.attention.sliding_window"),
        "layer_types": layer_types(keys, 4),
    }


def _nemotron(keys: Keys) -> Config:
    return {"hidden_act": "relu2", "attention_bias": has_part(keys, "attn_q.bias")}


def _row(hf_name: str, model_type: str, parts: Parts, **more: Any) -> Architecture:
    return Architecture(hf_name, model_type, parts, eps="layer_norm_epsilon", **more)


FALCON_40B = _row(
    "FalconForCausalLM",
    "falcon",
    {**_FALCON_PARTS, "attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"},
    top=_FALCON_TOP,
    layers="transformer.h.",
    has_ungrouped_rows=True,
    config=_falcon,
)
"""Files of architecture falcon that have two norms a layer."""

LAYER_NORMS: dict[str, Architecture] = {
    "phi2": _row("PhiForCausalLM", "phi", _PHI2_PARTS, top=_PHI2_TOP, config=_phi2),
    "starcoder2": _row(
        "Starcoder2ForCausalLM", "starcoder2", _STARCODER2_PARTS, config=_starcoder2
    ),
    "stablelm": _row("StableLmForCausalLM", "stablelm", _STABLELM_PARTS, config=_stablelm),
    "orion": _row("StableLmForCausalLM", "stablelm", LLAMA_PARTS, config=_orion),
    "gptneox": _row(
        "GPTNeoXForCausalLM",
        "gpt_neox",
        _NEOX_PARTS,
        top=_NEOX_TOP,
        layers="gpt_neox.layers.",
        has_ungrouped_rows=True,
        config=_neox,
    ),
    "falcon": _row(
        "FalconForCausalLM",
        "falcon",
        _FALCON_PARTS,
        top=_FALCON_TOP,
        layers="transformer.h.",
        has_ungrouped_rows=True,
        config=_falcon,
    ),
    "bloom": _row(
        "BloomForCausalLM",
        "bloom",
        BLOOM_PARTS,
        top=_BLOOM_TOP,
        layers="transformer.h.",
        has_ungrouped_rows=True,
        config=_bloom,
    ),
    "mpt": _row(
        "MptForCausalLM", "mpt", _MPT_PARTS, top=_MPT_TOP, layers="transformer.blocks.", config=_mpt
    ),
    "gpt2": _row(
        "GPT2LMHeadModel", "gpt2", _GPT2_PARTS, top=_GPT2_TOP, layers="transformer.h.", config=_gpt2
    ),
    "olmo": _row("OlmoForCausalLM", "olmo", LLAMA_PARTS, has_paired_rows=True, config=_olmo),
    "command-r": _row("CohereForCausalLM", "cohere", LLAMA_PARTS, config=_command_r),
    "cohere2": _row("Cohere2ForCausalLM", "cohere2", LLAMA_PARTS, config=_cohere2),
    "nemotron": _row(
        "NemotronForCausalLM", "nemotron", LLAMA_PARTS, norm_offset=1.0, config=_nemotron
    ),
}
