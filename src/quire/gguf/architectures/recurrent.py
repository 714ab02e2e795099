"""Architectures with recurrent layers: convolutions, gated delta rules and Mamba.

Files have the decays of a state as they are used, -exp(A_log); `weights/gguf_store.py` takes the
logarithm.
"""

from __future__ import annotations

from quire.errors import CheckpointError
from quire.gguf.architectures.dense import LLAMA_PARTS
from quire.gguf.architectures.expert_parts import (
    SIGMOID,
    SOFTMAX,
    check_router,
    expert_groups,
    expert_parts,
    normalises,
    qwen_experts,
)
from quire.gguf.architectures.expert_tensors import read_experts
from quire.gguf.architectures.facts import attention_layers, has_any, kv_heads, period_of
from quire.gguf.architectures.mixtures import GRANITE_PARTS
from quire.gguf.architectures.row import TOP_PARTS, Architecture, Config, Parts, Place
from quire.gguf.keys import Keys


def ssm_parts(prefix: str) -> Parts:
    """The tensors of a Mamba layer. `prefix`: what stands before their names there."""
    return {
        "ssm_in": f"{prefix}in_proj",
        "ssm_conv1d.weight": (Place(f"{prefix}conv1d.weight", form="conv"),),
        "ssm_conv1d.bias": f"{prefix}conv1d.bias",
        "ssm_x": f"{prefix}x_proj",
        "ssm_dt": f"{prefix}dt_proj",
        "ssm_dt_norm": f"{prefix}dt_layernorm",
        "ssm_b_norm": f"{prefix}b_layernorm",
        "ssm_c_norm": f"{prefix}c_layernorm",
        "ssm_a.": f"{prefix}A_log",
        "ssm_d.": f"{prefix}D",
        "ssm_out": f"{prefix}out_proj",
    }


def _mamba2_parts(prefix: str) -> Parts:
    """Names of the parts of Mamba 2, whose heads have one decay each."""
    return {
        **ssm_parts(prefix),
        "ssm_dt.bias": f"{prefix}dt_bias",
        "ssm_a.": (Place(f"{prefix}A_log", form="vector"),),
        "ssm_d.": (Place(f"{prefix}D", form="vector"),),
        "ssm_norm.weight": (Place(f"{prefix}norm.weight", form="vector"),),
    }


_DELTA_PARTS: Parts = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_in": "linear_attn.in_proj_qkvz",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_conv1d.weight": (Place("linear_attn.conv1d.weight", form="conv"),),
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_a.": (Place("linear_attn.A_log", form="vector"),),
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_QWEN_PARTS: Parts = {**LLAMA_PARTS, **_DELTA_PARTS}
_QWEN_MOE_PARTS: Parts = {
    **expert_parts(shared="mlp.shared_expert"),
    "ffn_gate_inp_shexp": (Place("mlp.shared_expert_gate", is_row=True),),
    **_DELTA_PARTS,
}
_LFM2_PARTS: Parts = {
    "attn_norm": "operator_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
    "ffn_gate_inp": "feed_forward.gate",
    "ffn_gate_exps": "feed_forward.experts.*.w1",
    "ffn_up_exps": "feed_forward.experts.*.w3",
    "ffn_down_exps": "feed_forward.experts.*.w2",
    "exp_probs_b.bias": "feed_forward.expert_bias",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
    "shortconv.conv.weight": (Place("conv.conv.weight", form="conv"),),
    "shortconv.conv.bias": "conv.conv.bias",
}
_LFM2_TOP = {
    "token_embd": "model.embed_tokens",
    "token_embd_norm": "model.embedding_norm",
    "output_norm": "model.embedding_norm",
    "output": "lm_head",
}
_GRANITE_HYBRID_PARTS: Parts = {
    **GRANITE_PARTS,
    "ffn_gate": (Place("shared_mlp.input_linear", half=0),),
    "ffn_up": (Place("shared_mlp.input_linear", half=1),),
    "ffn_down": "shared_mlp.output_linear",
    **_mamba2_parts("mamba."),
}
_FEED_FORWARD = {
    "ffn_norm": "pre_ff_layernorm",
    "ffn_norm.": "pre_ff_layernorm.weight",
    "ffn_gate": "feed_forward.gate_proj",
    "ffn_up": "feed_forward.up_proj",
    "ffn_down": "feed_forward.down_proj",
}
_FALCON_H1_PARTS: Parts = {**LLAMA_PARTS, **_FEED_FORWARD, **_mamba2_parts("mamba.")}
_JAMBA_PARTS: Parts = {
    **LLAMA_PARTS,
    **_FEED_FORWARD,
    **ssm_parts("mamba."),
    "ffn_gate_inp": "feed_forward.router",
    "ffn_gate_exps": "feed_forward.experts.*.gate_proj",
    "ffn_up_exps": "feed_forward.experts.*.up_proj",
    "ffn_down_exps": "feed_forward.experts.*.down_proj",
}
_FINAL_NORM_TOP = {**TOP_PARTS, "output_norm": "model.final_layernorm"}
_BACKBONE_TOP = {
    "token_embd": "backbone.embeddings",
    "output_norm": "backbone.norm_f",
    "output": "lm_head",
}
_NEMOTRON_PARTS: Parts = {
    "attn_norm": "norm",
    "attn_q": "mixer.q_proj",
    "attn_k": "mixer.k_proj",
    "attn_v": "mixer.v_proj",
    "attn_output": "mixer.o_proj",
    "ffn_up": "mixer.up_proj",
    "ffn_down": "mixer.down_proj",
    **_mamba2_parts("mixer."),
}
_NEMOTRON_MOE_PARTS: Parts = {
    **_NEMOTRON_PARTS,
    "ffn_gate_inp": "mixer.gate",
    "exp_probs_b.bias": "mixer.gate.e_score_correction_bias",
    "ffn_up_exps": "mixer.experts.*.up_proj",
    "ffn_down_exps": "mixer.experts.*.down_proj",
    "ffn_up_shexp": "mixer.shared_experts.up_proj",
    "ffn_down_shexp": "mixer.shared_experts.down_proj",
    "ffn_latent_down": "mixer.fc1_latent_proj",
    "ffn_latent_up": "mixer.fc2_latent_proj",
}
_MAMBA_PARTS: Parts = {"attn_norm": "norm", **ssm_parts("mixer.")}
_MAMBA2_PARTS: Parts = {"attn_norm": "norm", **_mamba2_parts("mixer.")}


def _layer_types(keys: Keys, recurrent: str) -> list[str]:
    """`layer_types` of config.json."""
    return ["full_attention" if one else recurrent for one in attention_layers(keys)]


def _inner(keys: Keys) -> tuple[int, int]:
    """The number of heads of the state, and the numbers of each."""
    heads, width = keys.whole("{arch}.ssm.time_step_rank"), keys.whole("{arch}.ssm.inner_size")
    if heads < 1 or width % heads:
        raise keys.error("{arch}.ssm.time_step_rank", f"a divisor of the inner size {width}")
    return heads, width // heads


def _delta(keys: Keys) -> Config:
    """Gated delta rules. The heads of v are in the order of the key heads that they read, or one
    head for each key head comes first, then another for each."""
    heads, dim = _inner(keys)
    return {
        "num_key_value_heads": kv_heads(keys),
        "layer_types": _layer_types(keys, "linear_attention"),
        "linear_num_value_heads": heads,
        "linear_value_head_dim": dim,
        "linear_num_key_heads": keys.whole("{arch}.ssm.group_count"),
        "linear_key_head_dim": keys.whole("{arch}.ssm.state_size"),
        "linear_conv_kernel_dim": keys.whole("{arch}.ssm.conv_kernel"),
        "linear_heads_are_tiled": has_any(keys, "ssm_alpha.weight"),
        "linear_qkv_is_apart": has_any(keys, "attn_gate.weight"),
        "attention_bias": has_any(keys, "attn_q.bias"),
    }


def _delta_experts(keys: Keys) -> Config:
    return {**qwen_experts(keys, True), **_delta(keys)}


def _lfm2(keys: Keys) -> Config:
    return {
        "norm_eps": keys.number("{arch}.attention.layer_norm_rms_epsilon"),
        "num_key_value_heads": kv_heads(keys),
        "layer_types": _layer_types(keys, "conv"),
        "conv_L_cache": keys.whole("{arch}.shortconv.l_cache"),
        "conv_bias": has_any(keys, "shortconv.conv.bias"),
        "block_auto_adjust_ff_dim": False,
    }


def _lfm2_experts(keys: Keys) -> Config:
    check_router(keys, SIGMOID)
    experts = read_experts(keys)
    num_dense = experts.is_sparse.index(True)
    if not all(experts.is_sparse[num_dense:]):
        raise CheckpointError(f"{keys.path}: a layer without experts follows layers with experts")
    return {
        **_lfm2(keys),
        "num_experts": experts.count,
        "num_experts_per_tok": experts.top_k,
        "moe_intermediate_size": experts.width,
        "num_dense_layers": num_dense,
        "norm_topk_prob": normalises(keys, True),
        "routed_scaling_factor": keys.number("{arch}.expert_weights_scale", 1.0),
        "use_expert_bias": has_any(keys, "exp_probs_b.bias"),
    }


def _mamba2_layers(keys: Keys) -> Config:
    """The keys that Granite, Falcon-H1 and Bamba have of Mamba 2."""
    heads, dim = _inner(keys)
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": dim,
        "mamba_d_ssm": heads * dim,
        "mamba_n_groups": keys.whole("{arch}.ssm.group_count"),
        "mamba_d_state": keys.whole("{arch}.ssm.state_size"),
        "mamba_d_conv": keys.whole("{arch}.ssm.conv_kernel"),
        "mamba_conv_bias": has_any(keys, "ssm_conv1d.bias"),
        "mamba_proj_bias": has_any(keys, "ssm_in.bias"),
    }


def _granite_hybrid(keys: Keys) -> Config:
    """Granite 4, and Bamba, whose attention has a rotation."""
    found: Config = {
        **_mamba2_layers(keys),
        "num_key_value_heads": kv_heads(keys),
        "layer_types": _layer_types(keys, "mamba"),
        "position_embedding_type": (
            "rope" if keys.flag("{arch}.rope.scaling.finetuned") is True else "nope"
        ),
        "attention_bias": has_any(keys, "attn_q.bias"),
        "embedding_multiplier": keys.number("{arch}.embedding_scale", 1.0),
        "residual_multiplier": keys.number("{arch}.residual_scale", 1.0),
        "logits_scaling": keys.number("{arch}.logit_scale", 1.0),
        "num_local_experts": 0,
    }
    if keys.value("{arch}.attention.scale") is not None:
        found["attention_multiplier"] = keys.number("{arch}.attention.scale")
    else:
        dim = keys.whole("{arch}.embedding_length") // keys.whole("{arch}.attention.head_count")
        found["attention_multiplier"] = dim**-0.5
    if not keys.whole("{arch}.expert_count", 0):
        return {**found, "shared_intermediate_size": keys.largest("{arch}.feed_forward_length")}
    check_router(keys, SOFTMAX)
    experts = read_experts(keys).in_all_layers(keys)
    return {
        **found,
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.top_k,
        "intermediate_size": experts.width,
        "shared_intermediate_size": experts.shared_width,
    }


def _falcon_h1(keys: Keys) -> Config:
    """The model's factors are part of the file's matrices."""
    return {
        **_mamba2_layers(keys),
        "mamba_rms_norm": has_any(keys, "ssm_norm.weight"),
        "mamba_norm_before_gate": False,
        "projectors_bias": has_any(keys, "ssm_out.bias"),
        "attention_bias": has_any(keys, "attn_q.bias"),
        "mlp_bias": has_any(keys, "ffn_up.bias"),
    }


def _nemotron_h(keys: Keys) -> Config:
    """A layer has one part: Mamba 2, attention or an MLP."""
    heads, dim = _inner(keys)
    recurrent = attention_layers(keys, "ssm_in.weight")
    attention = attention_layers(keys, "attn_q.weight")
    kinds = [
        "mamba" if is_mamba else "attention" if is_attention else "mlp"
        for is_mamba, is_attention in zip(recurrent, attention, strict=True)
    ]
    return {
        "layers_block_type": kinds,
        "num_key_value_heads": kv_heads(keys),
        "intermediate_size": keys.largest("{arch}.feed_forward_length"),
        "layer_norm_epsilon": keys.number("{arch}.attention.layer_norm_rms_epsilon"),
        "mlp_hidden_act": "relu2",
        "mamba_num_heads": heads,
        "mamba_head_dim": dim,
        "n_groups": keys.whole("{arch}.ssm.group_count"),
        "ssm_state_size": keys.whole("{arch}.ssm.state_size"),
        "conv_kernel": keys.whole("{arch}.ssm.conv_kernel"),
        "use_conv_bias": has_any(keys, "ssm_conv1d.bias"),
        "use_bias": has_any(keys, "ssm_in.bias"),
        "mlp_bias": has_any(keys, "ffn_up.bias"),
    }


def _nemotron_experts(keys: Keys) -> Config:
    """A layer may also have experts, which have no gate."""
    check_router(keys, SIGMOID)
    latent = keys.whole("{arch}.moe_latent_size", 0) or None
    experts = read_experts(keys, gated=False, row_size=latent)
    found = _nemotron_h(keys)
    kinds = zip(found["layers_block_type"], experts.is_sparse, strict=True)
    return {
        **found,
        "layers_block_type": ["moe" if is_sparse else kind for kind, is_sparse in kinds],
        "intermediate_size": found["intermediate_size"] or 1,  # a file may have no layer with it
        "mlp_bias": has_any(keys, "ffn_up.bias") or has_any(keys, "ffn_up_shexp.bias"),
        "n_routed_experts": experts.count,
        "num_experts_per_tok": experts.top_k,
        "moe_intermediate_size": experts.width,
        "moe_latent_size": latent,
        "n_shared_experts": int(experts.shared_width > 0),
        "moe_shared_expert_intermediate_size": experts.shared_width or 1,
        "norm_topk_prob": normalises(keys, True),
        "routed_scaling_factor": keys.number("{arch}.expert_weights_scale", 1.0),
        **expert_groups(keys),
    }


def _jamba(keys: Keys) -> Config:
    hidden, width = keys.whole("{arch}.embedding_length"), keys.whole("{arch}.ssm.inner_size")
    if hidden < 1 or width % hidden:
        raise keys.error("{arch}.ssm.inner_size", f"a multiple of the row's {hidden} numbers")
    found: Config = {
        "num_key_value_heads": kv_heads(keys),
        "mamba_expand": width // hidden,
        "mamba_d_state": keys.whole("{arch}.ssm.state_size"),
        "mamba_d_conv": keys.whole("{arch}.ssm.conv_kernel"),
        "mamba_dt_rank": keys.whole("{arch}.ssm.time_step_rank"),
        "mamba_conv_bias": has_any(keys, "ssm_conv1d.bias"),
        "mamba_proj_bias": has_any(keys, "ssm_in.bias"),
        "num_experts": 1,
        **period_of(keys, "attn_layer", attention_layers(keys)),
    }
    if keys.whole("{arch}.expert_count", 0) < 2:
        return found
    check_router(keys, SOFTMAX)
    experts = read_experts(keys)
    return {
        **found,
        "num_experts": experts.count,
        "num_experts_per_tok": experts.top_k,
        "intermediate_size": experts.width,
        **period_of(keys, "expert_layer", list(experts.is_sparse)),
    }


def _mamba(keys: Keys) -> Config:
    return {
        "intermediate_size": keys.whole("{arch}.ssm.inner_size"),
        "state_size": keys.whole("{arch}.ssm.state_size"),
        "conv_kernel": keys.whole("{arch}.ssm.conv_kernel"),
        "time_step_rank": keys.whole("{arch}.ssm.time_step_rank"),
        "layer_norm_epsilon": keys.number("{arch}.attention.layer_norm_rms_epsilon"),
        "use_conv_bias": has_any(keys, "ssm_conv1d.bias"),
        "use_bias": has_any(keys, "ssm_in.bias"),
    }


def _mamba2(keys: Keys) -> Config:
    heads, dim = _inner(keys)
    return {
        "num_heads": heads,
        "head_dim": dim,
        "intermediate_size": heads * dim,
        "n_groups": keys.whole("{arch}.ssm.group_count", 1),
        "state_size": keys.whole("{arch}.ssm.state_size"),
        "conv_kernel": keys.whole("{arch}.ssm.conv_kernel"),
        "layer_norm_epsilon": keys.number("{arch}.attention.layer_norm_rms_epsilon"),
        "use_conv_bias": has_any(keys, "ssm_conv1d.bias"),
        "use_bias": has_any(keys, "ssm_in.bias"),
    }


def has_norms_of_steps(keys: Keys) -> bool:
    """Whether a file of architecture `mamba` is Falcon-Mamba."""
    return keys.flag("{arch}.ssm.dt_b_c_rms") is True


_PLAIN = ("linear_attn.norm.weight",)
FALCON_MAMBA = Architecture(
    "FalconMambaForCausalLM", "falcon_mamba", _MAMBA_PARTS, _BACKBONE_TOP, "backbone.layers.",
    config=_mamba, attention="none",
)  # fmt: skip
RECURRENT: dict[str, Architecture] = {
    "qwen3next": Architecture(
        "Qwen3NextForCausalLM", "qwen3_next", _QWEN_MOE_PARTS, norm_offset=1.0, plain_norms=_PLAIN,
        config=_delta_experts,
    ),
    "qwen35": Architecture(
        "Qwen3_5ForCausalLM", "qwen3_5_text", _QWEN_PARTS, norm_offset=1.0, plain_norms=_PLAIN,
        config=_delta,
    ),
    "qwen35moe": Architecture(
        "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", _QWEN_MOE_PARTS, norm_offset=1.0,
        plain_norms=_PLAIN, config=_delta_experts,
    ),
    "lfm2": Architecture("Lfm2ForCausalLM", "lfm2", _LFM2_PARTS, _LFM2_TOP, config=_lfm2),
    "lfm2moe": Architecture(
        "Lfm2MoeForCausalLM", "lfm2_moe", _LFM2_PARTS, _LFM2_TOP, config=_lfm2_experts
    ),
    "granitehybrid": Architecture(
        "GraniteMoeHybridForCausalLM", "granitemoehybrid", _GRANITE_HYBRID_PARTS,
        has_paired_rows=True, config=_granite_hybrid,
    ),
    "falcon-h1": Architecture(
        "FalconH1ForCausalLM", "falcon_h1", _FALCON_H1_PARTS, _FINAL_NORM_TOP, config=_falcon_h1
    ),
    "nemotron_h": Architecture(
        "NemotronHForCausalLM", "nemotron_h", _NEMOTRON_PARTS, _BACKBONE_TOP, "backbone.layers.",
        has_paired_rows=True, config=_nemotron_h,
    ),
    "nemotron_h_moe": Architecture(
        "NemotronHForCausalLM", "nemotron_h", _NEMOTRON_MOE_PARTS, _BACKBONE_TOP,
        "backbone.layers.", has_paired_rows=True, config=_nemotron_experts,
    ),
    "jamba": Architecture(
        "JambaForCausalLM", "jamba", _JAMBA_PARTS, _FINAL_NORM_TOP, config=_jamba
    ),
    "mamba": Architecture(
        "MambaForCausalLM", "mamba", _MAMBA_PARTS, _BACKBONE_TOP, "backbone.layers.",
        config=_mamba, attention="none",
    ),
    "mamba2": Architecture(
        "Mamba2ForCausalLM", "mamba2", _MAMBA2_PARTS, _BACKBONE_TOP, "backbone.layers.",
        config=_mamba2, attention="none",
    ),
}  # fmt: skip
