"""Architectures with experts whose router takes the sigmoid of each logit."""

from __future__ import annotations

from quire.gguf.architectures.dense import LLAMA_PARTS
from quire.gguf.architectures.expert_parts import (
    MIXTRAL_PARTS,
    SIGMOID,
    check_router,
    deepseek_experts,
    expert_groups,
    expert_parts,
    local_experts,
)
from quire.gguf.architectures.expert_tensors import num_layers, read_experts
from quire.gguf.architectures.facts import has_part, layer_types, same_base_in_windows
from quire.gguf.architectures.row import Architecture, Config, Parts, Place
from quire.gguf.keys import Keys

_DEEPSEEK_PARTS: Parts = {
    **expert_parts(shared="mlp.shared_experts"),
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
}
_GLM_PARTS: Parts = {**_DEEPSEEK_PARTS, "post_attention_norm": "post_attention_layernorm"}
_MINIMAX_PARTS: Parts = {
    **MIXTRAL_PARTS,
    "exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias",
}
_EXAONE_PARTS: Parts = {
    **expert_parts(shared="mlp.shared_experts"),
    "exp_probs_b.bias": "mlp.e_score_correction_bias",
}
_LLAMA4_PARTS: Parts = {
    **LLAMA_PARTS,
    "ffn_gate": "feed_forward.gate_proj",
    "ffn_up": "feed_forward.up_proj",
    "ffn_down": "feed_forward.down_proj",
    "ffn_gate_inp": "feed_forward.router",
    "ffn_gate_exps.weight": (Place("feed_forward.experts.gate_up_proj", half=0),),
    "ffn_up_exps.weight": (Place("feed_forward.experts.gate_up_proj", half=1),),
    "ffn_gate_up_exps.weight": "feed_forward.experts.gate_up_proj",
    "ffn_down_exps.weight": "feed_forward.experts.down_proj",
    "ffn_gate_shexp": "feed_forward.shared_expert.gate_proj",
    "ffn_up_shexp": "feed_forward.shared_expert.up_proj",
    "ffn_down_shexp": "feed_forward.shared_expert.down_proj",
}
_MAVERICK_EXPERTS = 128


def _deepseek(keys: Keys) -> Config:
    """The configuration of routers like that of DeepSeek-V3."""
    check_router(keys, SIGMOID)
    return {
        **deepseek_experts(keys, normalised=True),
        **expert_groups(keys),
        "attention_bias": has_part(keys, "attn_q.bias"),
    }


def _glm4(keys: Keys) -> Config:
    """Solar Open has this architecture too, without norms of q and k."""
    return {**_deepseek(keys), "use_qk_norm": has_part(keys, "attn_q_norm.weight")}


def _exaone(keys: Keys) -> Config:
    """Layers of full attention do not rotate."""
    same_base_in_windows(keys)
    found = _deepseek(keys)
    return {
        **found,
        "num_experts": found.pop("n_routed_experts"),
        "num_shared_experts": found.pop("n_shared_experts"),
        "sliding_window": keys.whole("{arch}.attention.sliding_window"),
        "layer_types": layer_types(keys, 4),
    }


def _llama4(keys: Keys) -> Config:
    """Files do not say the chunks, nor which layers do not rotate, nor how q is scaled there: those
    of the published models, as in llama.cpp. Maverick has no norms of q and k."""
    check_router(keys, SIGMOID)
    experts = read_experts(keys)
    return {
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.top_k,
        "intermediate_size": experts.width,
        "intermediate_size_mlp": keys.whole("{arch}.feed_forward_length"),
        "moe_layers": [i for i, is_sparse in enumerate(experts.is_sparse) if is_sparse],
        "use_qk_norm": experts.count != _MAVERICK_EXPERTS,
        "transposed_weights": False,
        **_llama4_layers(keys),
    }


def _llama4_layers(keys: Keys) -> Config:
    """A window of 0 says that all layers see all positions and rotate."""
    count = num_layers(keys)
    if keys.value("{arch}.attention.sliding_window") == 0:
        return {
            "layer_types": ["full_attention"] * count,
            "no_rope_layers": [1] * count,
            "attn_temperature_tuning": False,
        }
    return {"no_rope_layer_interval": 4}


def _minimax(keys: Keys) -> Config:
    check_router(keys, SIGMOID)
    return local_experts(keys)


SIGMOID_MIXTURES: dict[str, Architecture] = {
    "glm4moe": Architecture("Glm4MoeForCausalLM", "glm4_moe", _GLM_PARTS, config=_glm4),
    "dots1": Architecture("Dots1ForCausalLM", "dots1", _DEEPSEEK_PARTS, config=_deepseek),
    "minimax-m2": Architecture(
        "MiniMaxM2ForCausalLM", "minimax_m2", _MINIMAX_PARTS, config=_minimax
    ),
    "exaone-moe": Architecture("ExaoneMoeForCausalLM", "exaone_moe", _EXAONE_PARTS, config=_exaone),
    "llama4": Architecture("Llama4ForCausalLM", "llama4_text", _LLAMA4_PARTS, config=_llama4),
}
