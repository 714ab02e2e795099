"""Gemma 3n and 4, whose layers are given a row of the token of their own, and may read the K and V
of others.

Full attention of Gemma 4 rotates the first frequencies of a head alone: `rope_freqs.weight` divides
the others by 1e30. Source: llama.cpp, conversion/gemma.py.
"""

from __future__ import annotations

from statistics import NormalDist

from quire.gguf.architectures.dense import GEMMA2_PARTS, gemma_config
from quire.gguf.architectures.expert_tensors import num_layers, read_experts
from quire.gguf.architectures.facts import has_part, has_tensor, layer_types, refused
from quire.gguf.architectures.row import ANY_EXPERT, TOP_PARTS, Architecture, Config, Parts, Place
from quire.gguf.keys import Keys
from quire.gguf.rope_factors import read_factors

_SPARSITY_DIGITS = 6
"""Precise decimal digits of a share of 1 that a file holds as a number of standard deviations in 32
bits."""

_INPUT_PARTS: Parts = {
    **GEMMA2_PARTS,
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
_TOP = {
    **TOP_PARTS,
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
_GEMMA3N_PARTS: Parts = {
    **_INPUT_PARTS,
    "altup_correct_coef": "altup.correction_coefs",
    "altup_correct_scale.weight": "altup.correct_output_scale",
    "altup_predict_coef": "altup.prediction_coefs",
    "altup_router": "altup.modality_router",
    "altup_router_norm": "altup.router_norm",
    "laurel_l": "laurel.linear_left",
    "laurel_r": "laurel.linear_right",
    "laurel_post_norm": "laurel.post_laurel_norm",
}
_GEMMA4_PARTS: Parts = {
    **_INPUT_PARTS,
    "layer_output_scale.weight": "layer_scalar",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "ffn_gate_inp": "router.proj",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "ffn_gate_exps.weight": (Place("experts.gate_up_proj", half=0),),
    "ffn_up_exps.weight": (Place("experts.gate_up_proj", half=1),),
    "ffn_gate_up_exps.weight": "experts.gate_up_proj",
    "ffn_down_exps.weight": "experts.down_proj",
}


def _inputs(keys: Keys) -> Config:
    """Configuration that both share: soft cap, windows, shared K and V, and the layers' own rows of
    a token."""
    cap = keys.value("{arch}.final_logit_softcapping")
    table = keys.tensor("per_layer_token_embd.weight")
    found: Config = {
        **gemma_config(keys),
        "final_logit_softcapping": keys.number("{arch}.final_logit_softcapping") if cap else None,
        "sliding_window": keys.whole("{arch}.attention.sliding_window"),
        "layer_types": layer_types(keys, 5),
        "num_kv_shared_layers": keys.whole("{arch}.attention.shared_kv_layers", 0),
        "hidden_size_per_layer_input": keys.whole("{arch}.embedding_length_per_layer_input", 0),
    }
    if table is not None:
        found["vocab_size_per_layer_input"] = table.shape[0]
    return found


def _gemma3n(keys: Keys) -> Config:
    rank = keys.tensor("blk.0.laurel_l.weight")
    if rank is None:
        raise refused(keys, "no laurel_l in layer 0")
    deviations = keys.numbers("{arch}.activation_sparsity_scale", float, num_layers(keys))
    if deviations is None:
        raise keys.error("{arch}.activation_sparsity_scale", "a list with a number for each layer")
    parts = [round(NormalDist().cdf(number), _SPARSITY_DIGITS) for number in deviations]
    return {
        **_inputs(keys),
        "rope_theta": keys.number("{arch}.rope.freq_base", 1e6),
        "rope_local_base_freq": keys.number("{arch}.rope.freq_base_swa", 10000.0),
        "altup_num_inputs": keys.whole("{arch}.altup.num_inputs"),
        "altup_active_idx": keys.whole("{arch}.altup.active_idx"),
        "altup_correct_scale": has_part(keys, "altup_correct_scale.weight"),
        "laurel_rank": rank.shape[0],
        "activation_sparsity_pattern": parts,
    }


def _gemma4(keys: Keys) -> Config:
    """Keys without `_swa` are those of full attention, but for K and V heads, which are a list."""
    own = _inputs(keys)
    full = [kind == "full_attention" for kind in own["layer_types"]]
    head_dim = keys.whole("{arch}.attention.key_length")
    in_windows = keys.whole("{arch}.attention.key_length_swa", head_dim)
    if keys.whole("{arch}.attention.value_length_swa", in_windows) != in_windows:
        raise refused(keys, "values of another length than keys")
    kv_heads = keys.wholes("{arch}.attention.head_count_kv", num_layers(keys))
    first = full.index(True) if any(full) else 0
    own |= {
        "head_dim": in_windows,
        "global_head_dim": head_dim,
        "attention_k_eq_v": not has_tensor(keys, f"blk.{first}.attn_v.weight"),
        "num_key_value_heads": _one(keys, kv_heads, full, is_full=False),
        "num_global_key_value_heads": _one(keys, kv_heads, full, is_full=True),
        "rope_parameters": _gemma4_rope(keys, head_dim, in_windows),
        "attention_bias": has_part(keys, "attn_q.bias"),
        # Files do not say it: in E2B and E4B, the tokens of an image do not see each other.
        "use_bidirectional_attention": None if own["hidden_size_per_layer_input"] else "vision",
        **_gemma4_mlp(keys, own["num_kv_shared_layers"]),
    }
    if keys.whole("{arch}.expert_count", 0) == 0:
        return own
    experts = read_experts(keys).in_all_layers(keys)
    return {
        **own,
        "enable_moe_block": True,
        "num_experts": experts.count,
        "top_k_experts": experts.top_k,
        "moe_intermediate_size": experts.width,
    }


def _one(keys: Keys, counts: list[int], full: list[bool], *, is_full: bool) -> int:
    """The number of all layers of a kind."""
    found = {count for count, kind in zip(counts, full, strict=True) if kind == is_full}
    if len(found) > 1:
        raise keys.error("{arch}.attention.head_count_kv", "the same in all layers of a kind")
    return next(iter(found), counts[0])


def _gemma4_mlp(keys: Keys, num_shared: int) -> Config:
    """Layers that read the K and V of others may have an MLP of twice the width."""
    key = "{arch}.feed_forward_length"
    widths = keys.wholes(key, num_layers(keys))
    width, first = widths[0], len(widths) - num_shared
    doubles = widths[-1] == 2 * width and num_shared > 0
    if widths != [width * (1 + (doubles and layer >= first)) for layer in range(len(widths))]:
        raise keys.error(key, "the same in all layers, or twice that in those that share K and V")
    return {"intermediate_size": width, "use_double_wide_mlp": doubles}


def _gemma4_rope(keys: Keys, head_dim: int, in_windows: int) -> Config:
    name = "rope_freqs.weight"
    factors = read_factors(keys, name) if has_tensor(keys, name) else []
    num_rotated = sum(factor == 1.0 for factor in factors) if factors else head_dim // 2
    others = factors[num_rotated:]
    if factors and (2 * len(factors) != head_dim or not all(factor > 1e20 for factor in others)):
        raise refused(keys, "factors in rope_freqs.weight that are not 1, and then 1e30")
    rotated = keys.whole("{arch}.rope.dimension_count_swa", in_windows)
    if not 1 <= rotated <= in_windows:
        raise keys.error("{arch}.rope.dimension_count_swa", f"from 1 to {in_windows}")
    return {
        "sliding_attention": {
            "rope_type": "default",
            "rope_theta": keys.number("{arch}.rope.freq_base_swa", 10000.0),
            "partial_rotary_factor": rotated / in_windows,
        },
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": keys.number("{arch}.rope.freq_base", 1e6),
            "partial_rotary_factor": 2 * num_rotated / head_dim,
        },
    }


GEMMA_INPUTS: dict[str, Architecture] = {
    "gemma3n": Architecture(
        "Gemma3nForCausalLM",
        "gemma3n_text",
        _GEMMA3N_PARTS,
        top={
            **_TOP,
            "altup_proj": f"model.altup_projections.{ANY_EXPERT}",
            "altup_unembd_proj": f"model.altup_unembed_projections.{ANY_EXPERT}",
        },
        config=_gemma3n,
    ),
    "gemma4": Architecture(
        "Gemma4ForCausalLM",
        "gemma4_text",
        _GEMMA4_PARTS,
        top=_TOP,
        config=_gemma4,
        has_own_rope=True,
    ),
}
