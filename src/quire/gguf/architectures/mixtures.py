"""Architectures with experts whose router takes the softmax of all logits."""

from __future__ import annotations

from quire.errors import UnsupportedModelError
from quire.gguf.architectures.dense import LLAMA_PARTS, granite_config
from quire.gguf.architectures.expert_parts import (
    MIXTRAL_PARTS,
    SOFTMAX,
    check_router,
    deepseek_experts,
    expert_parts,
    local_experts,
    normalises,
    qwen_experts,
)
from quire.gguf.architectures.expert_tensors import read_experts
from quire.gguf.architectures.facts import has_part, has_tensor, window
from quire.gguf.architectures.row import Architecture, Config, Parts, Place
from quire.gguf.keys import Keys

_QWEN2_PARTS: Parts = {
    **expert_parts(shared="mlp.shared_expert"),
    "ffn_gate_inp_shexp": (Place("mlp.shared_expert_gate", is_row=True),),
}
GRANITE_PARTS: Parts = {
    **LLAMA_PARTS,
    "ffn_gate_inp": "block_sparse_moe.router.layer",
    "ffn_gate_exps": (Place("block_sparse_moe.input_linear", half=0),),
    "ffn_up_exps": (Place("block_sparse_moe.input_linear", half=1),),
    "ffn_gate_up_exps": "block_sparse_moe.input_linear",
    "ffn_down_exps": "block_sparse_moe.output_linear",
    "ffn_gate_shexp": (Place("shared_mlp.input_linear", half=0),),
    "ffn_up_shexp": (Place("shared_mlp.input_linear", half=1),),
    "ffn_down_shexp": "shared_mlp.output_linear",
}
_GPT_OSS_PARTS: Parts = {
    **expert_parts(router="mlp.router"),
    "post_attention_norm": "post_attention_layernorm",
    "attn_sinks.weight": "self_attn.sinks",
}
_ERNIE_PARTS: Parts = {
    **expert_parts(shared="mlp.shared_experts"),
    "exp_probs_b.bias": (Place("mlp.moe_statics.e_score_correction_bias", is_row=True),),
}
_DEEPSEEK_PARTS: Parts = expert_parts(shared="mlp.shared_experts")
_HUNYUAN_PARTS: Parts = {
    **expert_parts(router="mlp.gate.wg", shared="mlp.shared_mlp"),
    "attn_q_norm": "self_attn.query_layernorm",
    "attn_k_norm": "self_attn.key_layernorm",
}


def _mixtral(keys: Keys) -> Config:
    check_router(keys, SOFTMAX)
    return local_experts(keys)


def _phimoe(keys: Keys) -> Config:
    """llama.cpp chooses experts by softmax; the models were trained with the sparsemixer."""
    check_router(keys, SOFTMAX)
    return {
        **local_experts(keys),
        "attention_bias": has_part(keys, "attn_q.bias"),
        "lm_head_bias": has_tensor(keys, "output.bias"),
        "sliding_window": window(keys),
    }


def _qwen2(keys: Keys) -> Config:
    return {**qwen_experts(keys, False), "qkv_bias": has_part(keys, "attn_q.bias")}


def _qwen3(keys: Keys) -> Config:
    """llama.cpp normalises the weights of all of them, as the published models do."""
    return {**qwen_experts(keys, True), "attention_bias": has_part(keys, "attn_q.bias")}


def _olmoe(keys: Keys) -> Config:
    check_router(keys, SOFTMAX)
    experts = read_experts(keys).in_all_layers(keys)
    found: Config = {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.top_k,
        "intermediate_size": experts.width,
        "norm_topk_prob": normalises(keys, False),
    }
    if keys.value("{arch}.attention.clamp_kqv") is not None:
        found["clip_qkv"] = keys.number("{arch}.attention.clamp_kqv")
    return found


def _granite(keys: Keys) -> Config:
    check_router(keys, SOFTMAX)
    found = {**granite_config(keys), **local_experts(keys)}
    if shared := read_experts(keys).shared_width:
        found["shared_intermediate_size"] = shared
    return found


def _gpt_oss(keys: Keys) -> Config:
    theta = keys.number("{arch}.rope.freq_base", 150000.0)
    return {
        **local_experts(keys),
        "attention_bias": has_part(keys, "attn_q.bias"),
        "sliding_window": keys.whole("{arch}.attention.sliding_window", 128),
        # What is read where the file has no scaling; a missing one would be that of gpt-oss.
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
    }


def _ernie(keys: Keys) -> Config:
    check_router(keys, SOFTMAX)
    experts = read_experts(keys)
    step = keys.whole("{arch}.interleave_moe_layer_step", 1)
    sparse = [layer for layer, is_sparse in enumerate(experts.is_sparse) if is_sparse]
    first, last = sparse[0], sparse[-1]
    if step < 1:
        raise keys.error("{arch}.interleave_moe_layer_step", "at least 1")
    if sparse != [layer for layer in range(first, last + 1) if (layer + 1) % step == 0]:
        raise keys.error("{arch}.interleave_moe_layer_step", "the distance of layers with experts")
    return {
        "moe_num_experts": experts.count,
        "moe_k": experts.top_k,
        "moe_intermediate_size": experts.width,
        "moe_num_shared_experts": experts.num_shared(keys),
        "moe_layer_start_index": first,
        "moe_layer_end_index": last,
        "moe_layer_interval": step,
        "use_bias": has_part(keys, "attn_q.bias"),
    }


def _deepseek(keys: Keys) -> Config:
    """DeepSeek's first models and Ling's, in whose files weights may add up to 1."""
    check_router(keys, SOFTMAX)
    return {
        **deepseek_experts(keys, normalised=False),
        "attention_bias": has_part(keys, "attn_q.bias"),
    }


def _hunyuan(keys: Keys) -> Config:
    """Files say nothing of the stretch of the rotation's base: it is part of the base there."""
    check_router(keys, SOFTMAX)
    experts = read_experts(keys).in_all_layers(keys)
    if not experts.shared_width:
        raise UnsupportedModelError(
            f"{keys.path}: tensor 'blk.0.ffn_down_shexp.weight' is missing: Hunyuan models must "
            "have a shared expert"
        )
    return {
        "num_experts": experts.count,
        "moe_topk": experts.top_k,
        "moe_intermediate_size": experts.width,
        "intermediate_size": experts.shared_width,
        "num_shared_expert": 1,
        "use_qk_norm": has_part(keys, "attn_q_norm.weight"),
        "attention_bias": has_part(keys, "attn_q.bias"),
    }


LLAMA_WITH_EXPERTS = Architecture(
    "MixtralForCausalLM", "mixtral", MIXTRAL_PARTS, has_paired_rows=True, config=_mixtral
)
"""Files of architecture llama that have experts."""

MIXTURES: dict[str, Architecture] = {
    "qwen2moe": Architecture("Qwen2MoeForCausalLM", "qwen2_moe", _QWEN2_PARTS, config=_qwen2),
    "qwen3moe": Architecture("Qwen3MoeForCausalLM", "qwen3_moe", expert_parts(), config=_qwen3),
    "qwen3vlmoe": Architecture("Qwen3MoeForCausalLM", "qwen3_moe", expert_parts(), config=_qwen3),
    "phimoe": Architecture("PhimoeForCausalLM", "phimoe", MIXTRAL_PARTS, config=_phimoe),
    "olmoe": Architecture("OlmoeForCausalLM", "olmoe", expert_parts(), config=_olmoe),
    "granitemoe": Architecture(
        "GraniteMoeForCausalLM", "granitemoe", GRANITE_PARTS, has_paired_rows=True, config=_granite
    ),
    "gpt-oss": Architecture(
        "GptOssForCausalLM", "gpt_oss", _GPT_OSS_PARTS, config=_gpt_oss, yarn={"truncate": False}
    ),
    "ernie4_5-moe": Architecture(
        "Ernie4_5_MoeForCausalLM", "ernie4_5_moe", _ERNIE_PARTS, config=_ernie
    ),
    "deepseek": Architecture(
        "DeepseekForCausalLM", "deepseek", _DEEPSEEK_PARTS, has_paired_rows=True, config=_deepseek
    ),
    "bailingmoe": Architecture(
        "DeepseekForCausalLM", "deepseek", _DEEPSEEK_PARTS, has_paired_rows=True, config=_deepseek
    ),
    "hunyuan-moe": Architecture(
        "HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", _HUNYUAN_PARTS, config=_hunyuan
    ),
}
