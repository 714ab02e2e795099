"""Parts shared by architectures with experts: names of tensors, and the keys of routers."""

from __future__ import annotations

from quire.errors import UnsupportedModelError
from quire.gguf.architectures.dense import LLAMA_PARTS
from quire.gguf.architectures.expert_tensors import read_experts
from quire.gguf.architectures.row import Config, Parts, Place
from quire.gguf.keys import Keys

SOFTMAX, SIGMOID = 1, 2
"""`expert_gating_func`."""


def expert_parts(
    experts: str = "mlp.experts",
    matrices: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    *,
    router: str = "mlp.gate",
    shared: str | None = None,
) -> Parts:
    """The parts of a layer with experts. `experts`, `shared`: prefixes; `matrices`: gate, up and
    down of an expert."""
    gate, up, down = (f"{experts}.*.{name}" for name in matrices)
    of_shared = {}
    if shared is not None:
        of_shared = {
            f"ffn_{name}_shexp": f"{shared}.{name}_proj" for name in ("gate", "up", "down")
        }
    return {
        **LLAMA_PARTS,
        "ffn_gate_inp": router,
        "ffn_gate_exps": gate,
        "ffn_up_exps": up,
        "ffn_down_exps": down,
        "ffn_gate_up_exps": (Place(gate, share=0), Place(up, share=1)),
        **of_shared,
    }


_MIXTRAL_MATRICES = ("w1", "w3", "w2")

MIXTRAL_PARTS: Parts = expert_parts(
    "block_sparse_moe.experts", _MIXTRAL_MATRICES, router="block_sparse_moe.gate"
)


def local_experts(keys: Keys) -> Config:
    """The keys of several families with experts in every layer."""
    experts = read_experts(keys).in_all_layers(keys)
    return {
        "num_local_experts": experts.count,
        "num_experts_per_tok": experts.top_k,
        "intermediate_size": experts.width,
    }


def normalises(keys: Keys, default: bool) -> bool:
    """Whether the weights of a token's experts are made to add up to 1."""
    found = keys.flag("{arch}.expert_weights_norm")
    return default if found is None else found


def check_router(keys: Keys, wanted: int) -> None:
    """Raises UnsupportedModelError for a router that the architecture does not have here."""
    found = keys.whole("{arch}.expert_gating_func", wanted)
    if found != wanted:
        raise UnsupportedModelError(
            f"{keys.path}: {keys.architecture}.expert_gating_func is {found}; models of this "
            f"architecture have {wanted} (1: softmax, 2: sigmoid)"
        )


def deepseek_experts(keys: Keys, normalised: bool) -> Config:
    """Experts by the names that DeepSeek gave them. `normalised`: whether weights add up to 1 where
    the file does not say it."""
    experts = read_experts(keys)
    return {
        "n_routed_experts": experts.count,
        "num_experts_per_tok": experts.top_k,
        "moe_intermediate_size": experts.width,
        "n_shared_experts": experts.num_shared(keys),
        "mlp_layer_types": experts.layer_types,
        "norm_topk_prob": normalises(keys, normalised),
        "routed_scaling_factor": keys.number("{arch}.expert_weights_scale", 1.0),
    }


def qwen_experts(keys: Keys, normalised: bool) -> Config:
    """Experts by Qwen's names. `normalised`: as in `deepseek_experts`."""
    check_router(keys, SOFTMAX)
    experts = read_experts(keys)
    shared = {"shared_expert_intermediate_size": experts.shared_width}
    return {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.top_k,
        "moe_intermediate_size": experts.width,
        "mlp_layer_types": experts.layer_types,
        "norm_topk_prob": normalises(keys, normalised),
        **(shared if experts.shared_width else {}),
    }


def expert_groups(keys: Keys) -> Config:
    """The groups of experts, in some of which those of a token are."""
    return {
        "n_group": keys.whole("{arch}.expert_group_count", 1),
        "topk_group": keys.whole("{arch}.expert_group_used_count", 1),
    }
