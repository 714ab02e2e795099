"""Architectures with latent attention: DeepSeek V2 and V3, Kimi K2, GLM-4.7-Flash, MiniCPM3, Kimi
Linear.

Newer files have the matrices of keys and values of each head apart, those of keys transposed
(`attn_k_b` [N, r, dn], `attn_v_b` [N, dv, r]); older ones have both in one (`attn_kv_b`).
"""

from __future__ import annotations

from math import prod

from quire.errors import CheckpointError
from quire.gguf.architectures.dense import LLAMA_PARTS
from quire.gguf.architectures.expert_parts import (
    SIGMOID,
    SOFTMAX,
    deepseek_experts,
    expert_groups,
    expert_parts,
)
from quire.gguf.architectures.expert_tensors import num_layers
from quire.gguf.architectures.facts import attention_layers, has_any
from quire.gguf.architectures.recurrent import ssm_parts
from quire.gguf.architectures.row import Architecture, Config, Parts, Place
from quire.gguf.keys import Keys
from quire.gguf.yarn import yarn_ramp

_LATENT_PARTS: Parts = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj.*",
    "attn_v_b": "self_attn.v_b_proj.*",
}
_DEEPSEEK_PARTS: Parts = {
    **expert_parts(shared="mlp.shared_experts"),
    **_LATENT_PARTS,
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
}
_MINICPM_PARTS: Parts = {**LLAMA_PARTS, **_LATENT_PARTS}
_KIMI = "block_sparse_moe"
_KIMI_PARTS: Parts = {
    **expert_parts(f"{_KIMI}.experts", ("w1", "w3", "w2"), router=f"{_KIMI}.gate",
                   shared=f"{_KIMI}.shared_experts"),
    **_LATENT_PARTS,
    **ssm_parts("self_attn."),
    **{
        f"ssm_conv1d_{part}.weight": (Place(f"self_attn.{part}_conv1d.weight", form="conv"),)
        for part in "qkv"
    },
    **{f"ssm_{part}": f"self_attn.{part}_proj" for part in ("f_a", "f_b", "g_a", "g_b")},
    "ssm_beta": "self_attn.b_proj",
    "ssm_dt.bias": "self_attn.dt_bias",
    "ssm_norm": "self_attn.o_norm",
    "exp_probs_b.bias": f"{_KIMI}.gate.e_score_correction_bias",
}  # fmt: skip


def _latent(keys: Keys) -> Config:
    """Sizes. `key_length` and `value_length` are those of a latent where `*_mla` are there too."""
    rope = keys.whole("{arch}.rope.dimension_count")
    key = keys.whole("{arch}.attention.key_length_mla", keys.whole("{arch}.attention.key_length"))
    if not 1 <= rope < key:
        raise keys.error("{arch}.rope.dimension_count", f"from 1 to {key - 1}")
    found: Config = {
        "kv_lora_rank": keys.whole("{arch}.attention.kv_lora_rank"),
        "q_lora_rank": None,
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": key - rope,
        "v_head_dim": keys.whole(
            "{arch}.attention.value_length_mla", keys.whole("{arch}.attention.value_length", 0)
        ),
        "heads_of_kv_are_apart": has_any(keys, "attn_k_b.weight"),
        "attention_bias": has_any(keys, "attn_q_a.bias"),
    }
    if has_any(keys, "attn_q_a.weight"):
        found["q_lora_rank"] = keys.whole("{arch}.attention.q_lora_rank")
    return found


def _yarn(keys: Keys) -> Config:
    """The stretched rotation. The file has a tenth of `mscale_all_dim`, and says nothing of
    `mscale`, which is equal in all models that llama.cpp converts."""
    if keys.text("{arch}.rope.scaling.type") != "yarn":
        return {}
    found = yarn_ramp(keys, keys.number("{arch}.rope.scaling.factor"))
    if keys.value("{arch}.rope.scaling.yarn_log_multiplier") is not None:
        scale = round(10.0 * keys.number("{arch}.rope.scaling.yarn_log_multiplier"), 7)
        found |= {"mscale": scale, "mscale_all_dim": scale}
    return {"rope_scaling": found}


def _experts(keys: Keys, normalised: bool) -> Config:
    return {**deepseek_experts(keys, normalised), **expert_groups(keys)}


def has_sigmoid(keys: Keys) -> bool:
    """Whether a file of architecture `deepseek2` is like DeepSeek V3. Files that do not name the
    router are of V2, unless they have a bias for the choice of experts."""
    default = SIGMOID if has_any(keys, "exp_probs_b.bias") else SOFTMAX
    return keys.whole("{arch}.expert_gating_func", default) == SIGMOID


def _second(keys: Keys) -> Config:
    found = _experts(keys, normalised=False)
    method = "group_limited_greedy" if found["n_group"] > 1 else "greedy"
    return {**_latent(keys), **_yarn(keys), **found, "topk_method": method}


def _third(keys: Keys) -> Config:
    return {**_latent(keys), **_yarn(keys), **_experts(keys, normalised=True)}


def _minicpm3(keys: Keys) -> Config:
    """The file does not say the model's factors; they are those of the published one, which the
    family knows."""
    found = _latent(keys)
    if not found["v_head_dim"]:
        size = keys.tensor("blk.0.attn_kv_b.weight")
        heads = keys.whole("{arch}.attention.head_count")
        if size is None or heads < 1 or size.shape[0] % heads:
            raise CheckpointError(f"{keys.path}: blk.0.attn_kv_b.weight has no equal heads")
        found["v_head_dim"] = size.shape[0] // heads - found["qk_nope_head_dim"]
    return found


def _num_delta_heads(keys: Keys) -> int:
    """The heads of linear attention: they have a decay each."""
    found = (keys.tensor(f"blk.{layer}.ssm_a") for layer in range(num_layers(keys)))
    return next((prod(tensor.shape) for tensor in found if tensor is not None), 1)


def _kimi(keys: Keys) -> Config:
    found = _experts(keys, normalised=True)
    return {
        **_latent(keys),
        "layer_types": [
            "full_attention" if one else "linear_attention"
            for one in attention_layers(keys, "attn_kv_a_mqa.weight")
        ],
        "linear_attn_config": {
            "head_dim": keys.whole("{arch}.kda.head_dim"),
            "num_heads": _num_delta_heads(keys),
            "short_conv_kernel_size": keys.whole("{arch}.ssm.conv_kernel"),
        },
        "model_max_length": keys.whole("{arch}.context_length"),
        "num_experts": found["n_routed_experts"],
        "num_experts_per_token": found["num_experts_per_tok"],
        "num_shared_experts": found["n_shared_experts"],
        "num_expert_group": found["n_group"],
        "topk_group": found["topk_group"],
        "moe_intermediate_size": found["moe_intermediate_size"],
        "mlp_layer_types": found["mlp_layer_types"],
        "routed_scaling_factor": found["routed_scaling_factor"],
        "moe_renormalize": found["norm_topk_prob"],
    }


DEEPSEEK_V3 = Architecture(
    "DeepseekV3ForCausalLM", "deepseek_v3", _DEEPSEEK_PARTS, config=_third, attention="latent",
    has_own_rope=True,
)  # fmt: skip
LATENT: dict[str, Architecture] = {
    "deepseek2": Architecture(
        "DeepseekV2ForCausalLM", "deepseek_v2", _DEEPSEEK_PARTS, config=_second,
        attention="latent", has_own_rope=True,
    ),
    "minicpm3": Architecture(
        "MiniCPM3ForCausalLM", "minicpm3", _MINICPM_PARTS, config=_minicpm3, attention="latent"
    ),
    "kimi-linear": Architecture(
        "KimiLinearForCausalLM", "kimi_linear", _KIMI_PARTS, config=_kimi, attention="latent",
        has_own_rope=True,
    ),
}  # fmt: skip
