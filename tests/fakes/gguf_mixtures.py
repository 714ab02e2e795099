"""GGUF files of models with experts, written by gguf-py from checkpoints of transformers.

Names of tensors and keys are gguf-py's; what llama.cpp's conversion does to tensors is done again
here. Source: llama.cpp, conversion/.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from gguf_files import permuted
from gguf_model_file import Floats, ModelFile, Stored, Tensors, into, rope_of, unpermuted, unstacked

_EXPERT = re.compile(r"(model\.layers\.(\d+)\.\w+\.experts)\.(\d+)\.(\w+)\.weight")
_FUSED = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up_proj|down_proj)(_bias)?")
_TRANSPOSED = re.compile(r"model\.layers\.(\d+)\.feed_forward\.experts\.(gate_up_proj|down_proj)")
_INPUT = re.compile(r"model\.layers\.(\d+)\.(block_sparse_moe|shared_mlp)\.input_linear\.weight")
_PAIRED = ("llama", "granitemoe", "deepseek", "bailingmoe")


class MixtureFile(ModelFile):
    """A model with experts."""

    def own_keys(self) -> dict[str, Any]:
        return _KEYS[self.architecture](self.config)

    def converted(self, tensors: Tensors) -> Iterator[Stored]:
        def llama_name(name: str) -> str:
            name = name.replace("e_score_correction_bias", "e_score_correction.bias")
            return self.llama_name(name + (".weight" if name.endswith("sinks") else ""))

        experts: dict[tuple[str, str], list[str]] = {}
        for name, array in tensors.items():
            if match := _EXPERT.fullmatch(name):
                experts.setdefault((match[1], match[4]), []).append(name)
            elif "shared_expert" in name and self.architecture in ("deepseek", "bailingmoe"):
                yield from _without_gate(llama_name, name, array, self.held)
            elif match := _TRANSPOSED.fullmatch(name):
                yield from _llama4_experts(name, array, match)
            elif match := _FUSED.fullmatch(name):
                yield from _gpt_oss(name, array, match)
            elif match := _INPUT.fullmatch(name):
                end = "exps" if match[2] == "block_sparse_moe" else "shexp"
                half = array.shape[-2] // 2
                for index, part in enumerate(("gate", "up")):
                    rows = slice(index * half, (index + 1) * half)
                    stored = f"blk.{match[1]}.ffn_{part}_{end}.weight"
                    yield stored, array[..., rows, :], into(name, (..., rows, slice(None)))
            elif self.architecture in _PAIRED and (".q_proj." in name or ".k_proj." in name):
                heads = self.config[
                    "num_attention_heads" if ".q_proj." in name else "num_key_value_heads"
                ]
                yield llama_name(name), permuted(array, heads), unpermuted(name, heads)
            elif name == "lm_head.weight" and self.config.get("tie_word_embeddings"):
                continue
            elif array.shape[0] == 1 and array.ndim == 2:
                yield llama_name(name), array[0], into(name, (0,))
            else:
                yield llama_name(name), array, into(name, (...,))
        for (prefix, part), members in experts.items():
            members.sort(key=lambda name: int(_EXPERT.fullmatch(name)[3]))  # type: ignore[index]
            stored = llama_name(_merged_name(prefix, part))
            yield stored, np.stack([tensors[name] for name in members]), unstacked(members)


def _merged_name(prefix: str, part: str) -> str:
    layer = prefix.split(".")[2]
    if "block_sparse_moe" in prefix and part in ("w1", "w2", "w3"):
        return f"layers.{layer}.feed_forward.experts.{part}.weight"
    return f"{prefix}.{part}.weight"


def _gpt_oss(name: str, array: Floats, match: re.Match[str]) -> Iterator[Stored]:
    """Columns of gate and up alternate; matrices are transposed."""
    layer, part, bias = match.groups()
    kind = "bias" if bias else "weight"
    for index, own in enumerate(("gate", "up") if part == "gate_up_proj" else ("down",)):
        columns = slice(index, None, 2) if part == "gate_up_proj" else slice(None)
        values = array[..., columns]

        def undo(
            values: Floats, held: Tensors, columns: slice = columns, bias: str | None = bias
        ) -> None:
            held[name][..., columns] = values if bias else values.swapaxes(1, 2)

        yield (
            f"blk.{layer}.ffn_{own}_exps.{kind}",
            values if bias else values.swapaxes(1, 2),
            undo,
        )


def _llama4_experts(name: str, array: Floats, match: re.Match[str]) -> Iterator[Stored]:
    """Gates and ups lie side by side; matrices are transposed."""
    layer, part = match.groups()
    own = ("gate", "up") if part == "gate_up_proj" else ("down",)
    width = array.shape[2] // len(own)
    for index, kind in enumerate(own):
        columns = slice(index * width, (index + 1) * width)

        def undo(values: Floats, held: Tensors, columns: slice = columns) -> None:
            held[name][..., columns] = values.swapaxes(1, 2)

        stored = f"blk.{layer}.ffn_{kind}_exps.weight"
        yield stored, array[..., columns].swapaxes(1, 2), undo


def _without_gate(
    llama_name: Callable[[str], str], name: str, array: Floats, held: Tensors
) -> Iterator[Stored]:
    """Of Qwen2-MoE, whose gate of the shared expert becomes one half for every token."""
    if "shared_expert_gate" in name:
        held[name][...] = 0.0
        return
    factor = np.float32(0.5 if "down_proj" in name else 1.0)

    def undo(values: Floats, held: Tensors) -> None:
        held[name][...] = values / factor

    yield llama_name(name.replace("shared_expert.", "shared_experts.")), array * factor, undo


def _deepseek1(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "expert_count": config["num_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": 2,
        "expert_weights_scale": 1.0,
        "expert_weights_norm": True if config["norm_topk_prob"] else None,
        "leading_dense_block_count": len(config.get("mlp_only_layers") or ()),
    }


def _experts(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "expert_count": config.get("num_local_experts") or config.get("num_experts"),
        "expert_used_count": config.get("num_experts_per_tok"),
    }


def _qwen(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_experts(config),
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size"),
    }


def _granite(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_experts(config),
        "attention.scale": float(config["attention_multiplier"]),
        "embedding_scale": float(config["embedding_multiplier"]),
        "residual_scale": float(config["residual_multiplier"]),
        "logit_scale": float(config["logits_scaling"]),
        "expert_shared_feed_forward_length": config.get("shared_intermediate_size"),
    }


def _gpt_oss_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = rope_of(config)
    yarn = {}
    if rope["rope_type"] == "yarn":
        yarn = {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": float(rope["factor"]),
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        }
    return {
        **_experts(config),
        "attention.sliding_window": config["sliding_window"],
        "expert_feed_forward_length": config["intermediate_size"],
        **yarn,
    }


def _deepseek(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["n_shared_experts"],
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_gating_func": 2,
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "expert_weights_norm": bool(config["norm_topk_prob"]),
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
    }


def _glm4(config: Mapping[str, Any]) -> dict[str, Any]:
    part = rope_of(config).get("partial_rotary_factor", 0.5)
    return {**_deepseek(config), "rope.dimension_count": int(config["head_dim"] * part)}


def _ernie(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "expert_count": config["moe_num_experts"],
        "expert_used_count": config["moe_k"],
        "interleave_moe_layer_step": config["moe_layer_interval"],
        "leading_dense_block_count": config["moe_layer_start_index"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["moe_num_shared_experts"],
        # As llama.cpp writes it; it is right by chance in published models alone.
        "expert_shared_feed_forward_length": config["intermediate_size"]
        // config["num_key_value_heads"],
    }


def _hunyuan(config: Mapping[str, Any]) -> dict[str, Any]:
    rope, dim = rope_of(config), config["head_dim"]
    stretch = rope["alpha"] ** (dim / (dim - 2))
    top_k = config["moe_topk"]
    return {
        "expert_count": config["num_experts"],
        "expert_used_count": top_k[0] if isinstance(top_k, list) else top_k,
        "expert_shared_feed_forward_length": config["intermediate_size"],
        "expert_feed_forward_length": config["intermediate_size"],
        "expert_shared_count": 1,
        "rope.freq_base": float(rope["rope_theta"] * stretch),
        "rope.scaling.type": "none",
        "rope.scaling.factor": 1.0,
    }


def _minimax(config: Mapping[str, Any]) -> dict[str, Any]:
    part = rope_of(config).get("partial_rotary_factor", 1.0)
    return {
        **_experts(config),
        "expert_gating_func": 2,
        "expert_feed_forward_length": config["intermediate_size"],
        "rope.dimension_count": int(config["head_dim"] * part),
    }


def _phimoe(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**_experts(config), "attention.sliding_window": config.get("sliding_window") or 0}


def _exaone(config: Mapping[str, Any]) -> dict[str, Any]:
    own = {
        "n_routed_experts": config["num_experts"],
        "n_shared_experts": config["num_shared_experts"],
        "first_k_dense_replace": config["mlp_layer_types"].index("sparse"),
    }
    return {
        **_deepseek({**config, **own}),
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [
            kind == "sliding_attention" for kind in config["layer_types"]
        ],
    }


def _llama4(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_experts(config),
        "feed_forward_length": config["intermediate_size_mlp"],
        "expert_feed_forward_length": config["intermediate_size"],
        "interleave_moe_layer_step": config["interleave_moe_layer_step"],
    }


_KEYS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "llama": _experts,
    "qwen2moe": _qwen,
    "qwen3moe": _qwen,
    "olmoe": lambda config: {**_experts(config), "attention.clamp_kqv": config["clip_qkv"]},
    "granitemoe": _granite,
    "gpt-oss": _gpt_oss_keys,
    "glm4moe": _glm4,
    "dots1": _deepseek,
    "ernie4_5-moe": _ernie,
    "hunyuan-moe": _hunyuan,
    "minimax-m2": _minimax,
    "qwen3vlmoe": lambda config: {**_qwen(config), "n_deepstack_layers": 3},
    "deepseek": _deepseek1,
    "bailingmoe": _deepseek1,
    "phimoe": _phimoe,
    "exaone-moe": _exaone,
    "llama4": _llama4,
}
