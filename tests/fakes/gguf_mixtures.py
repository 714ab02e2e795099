"""GGUF files of models with experts, written by gguf-py from checkpoints of transformers.

Names of tensors and keys are gguf-py's; what llama.cpp's conversion does to tensors is done again
here. Source: llama.cpp, conversion/.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf_blocks import random_blocks
from gguf_files import byte_level_metadata, permuted
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Tensors = dict[str, Floats]
Undo = Callable[[Floats, Tensors], None]
"""Writes a tensor of the file to where it came from."""

_EXPERT = re.compile(r"(model\.layers\.(\d+)\.\w+\.experts)\.(\d+)\.(\w+)\.weight")
_FUSED = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up_proj|down_proj)(_bias)?")
_INPUT = re.compile(r"model\.layers\.(\d+)\.(block_sparse_moe|shared_mlp)\.input_linear\.weight")
_PAIRED = ("llama", "granitemoe")
_FLOAT = ("norm", "bias", "ffn_gate_inp", "sinks", "exp_probs_b")
_HALVES_OF_SCALES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


class MixtureFile:
    """A model as a GGUF file, and the very numbers that it holds."""

    def __init__(self, architecture: str, config: Mapping[str, Any], tensors: Tensors) -> None:
        """`config`, `tensors`: of a checkpoint of transformers."""
        self.architecture, self.config = architecture, config
        self.held: Tensors = {name: array.copy() for name, array in tensors.items()}
        """What the file holds, under transformers' names: `write` rounds them."""
        self._stored = list(self._converted(tensors))

    def names(self) -> list[str]:
        return [name for name, _, _ in self._stored]

    def write(
        self,
        path: Path,
        type_of: Callable[[str], str] = lambda name: "F32",  # noqa: ARG005
        *,
        without: str | None = None,
        extra: Mapping[str, Floats] | None = None,
        **keys: Any,
    ) -> Path:
        """`type_of`: the type of a matrix by its name. `keys`: values of the architecture's keys,
        instead of those of the configuration; None: the key is left out."""
        writer = gguf.GGUFWriter(path, self.architecture)
        self._write_keys(writer, keys)
        for name, array, undo in self._stored:
            if name == without:
                continue
            kind = "F32" if any(part in name for part in _FLOAT) else type_of(name)
            raw = _rounded(array, kind, len(name))
            undo(gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind]), self.held)
            writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[kind])
        for name, array in (extra or {}).items():
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _converted(self, tensors: Tensors) -> Iterator[tuple[str, Floats, Undo]]:
        layers = self.config["num_hidden_layers"]
        arch = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == self.architecture)
        names = gguf.get_tensor_name_map(arch, layers)

        def llama_name(name: str) -> str:
            name = name.replace("e_score_correction_bias", "e_score_correction.bias")
            name += ".weight" if name.endswith("sinks") else ""
            found = names.get_name(name, try_suffixes=(".weight", ".bias"))
            if found is None:
                raise RuntimeError(f"gguf-py has no name for {name} in {self.architecture}")
            return str(found)

        experts: dict[tuple[str, str], list[str]] = {}
        for name, array in tensors.items():
            if match := _EXPERT.fullmatch(name):
                experts.setdefault((match[1], match[4]), []).append(name)
            elif match := _FUSED.fullmatch(name):
                yield from _gpt_oss(name, array, match)
            elif match := _INPUT.fullmatch(name):
                end = "exps" if match[2] == "block_sparse_moe" else "shexp"
                half = array.shape[-2] // 2
                for index, part in enumerate(("gate", "up")):
                    rows = slice(index * half, (index + 1) * half)
                    stored = f"blk.{match[1]}.ffn_{part}_{end}.weight"
                    yield stored, array[..., rows, :], _into(name, (..., rows, slice(None)))
            elif self.architecture in _PAIRED and (".q_proj." in name or ".k_proj." in name):
                heads = self.config[
                    "num_attention_heads" if ".q_proj." in name else "num_key_value_heads"
                ]
                yield llama_name(name), permuted(array, heads), _unpermuted(name, heads)
            elif name == "lm_head.weight" and self.config.get("tie_word_embeddings"):
                continue
            elif array.shape[0] == 1 and array.ndim == 2:
                yield llama_name(name), array[0], _into(name, (0,))
            else:
                yield llama_name(name), array, _into(name, (...,))
        for (prefix, part), members in experts.items():
            members.sort(key=lambda name: int(_EXPERT.fullmatch(name)[3]))  # type: ignore[index]
            stored = llama_name(_merged_name(prefix, part))
            yield stored, np.stack([tensors[name] for name in members]), _unstacked(members)

    def _write_keys(self, writer: Any, keys: Mapping[str, Any]) -> None:
        config = self.config
        values: dict[str, Any] = {
            "context_length": config["max_position_embeddings"],
            "embedding_length": config["hidden_size"],
            "block_count": config["num_hidden_layers"],
            "feed_forward_length": config["intermediate_size"],
            "attention.head_count": config["num_attention_heads"],
            "attention.head_count_kv": config["num_key_value_heads"],
            "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
            "rope.freq_base": float(_rope(config).get("rope_theta", 10000.0)),
            **_KEYS[self.architecture](config),
            **keys,
        }
        if config.get("head_dim"):
            values = {"attention.key_length": config["head_dim"],
                      "attention.value_length": config["head_dim"], **values}  # fmt: skip
        for key, value in values.items():
            _add(writer, f"{self.architecture}.{key}", value)
        vocabulary = byte_level_metadata(config["vocab_size"])
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(vocabulary["tokenizer.ggml.tokens"])
        kinds = vocabulary["tokenizer.ggml.token_type"]
        writer.add_token_types([kind.value for kind in kinds])
        writer.add_token_merges(vocabulary["tokenizer.ggml.merges"])
        writer.add_bos_token_id(vocabulary["tokenizer.ggml.bos_token_id"])
        writer.add_eos_token_id(vocabulary["tokenizer.ggml.eos_token_id"])


def _add(writer: Any, key: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def _rounded(array: Floats, kind: str, seed: int) -> NDArray[Any]:
    """In the blocks of a type; random ones of the types that gguf-py cannot round to."""
    array = np.ascontiguousarray(array, np.float32)
    if kind not in _HALVES_OF_SCALES:
        rounded: NDArray[Any] = gguf.quants.quantize(array, gguf.GGMLQuantizationType[kind])
        return rounded
    blocks, _ = random_blocks(kind, array.size // array.shape[-1], array.shape[-1], seed)
    for at in _HALVES_OF_SCALES[kind]:
        scales = np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)
        blocks[..., at : at + 2] = (scales * np.float16(0.05)).view(np.uint8)
    return blocks.reshape(*array.shape[:-1], -1)


def _merged_name(prefix: str, part: str) -> str:
    layer = prefix.split(".")[2]
    if "block_sparse_moe" in prefix and part in ("w1", "w2", "w3"):
        return f"layers.{layer}.feed_forward.experts.{part}.weight"
    return f"{prefix}.{part}.weight"


def _into(name: str, place: tuple[Any, ...]) -> Undo:
    def undo(values: Floats, held: Tensors) -> None:
        held[name][place] = values

    return undo


def _unpermuted(name: str, heads: int) -> Undo:
    def undo(values: Floats, held: Tensors) -> None:
        pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
        held[name][...] = pairs.swapaxes(1, 2).reshape(values.shape)

    return undo


def _unstacked(members: list[str]) -> Undo:
    def undo(values: Floats, held: Tensors) -> None:
        for name, matrix in zip(members, values, strict=True):
            held[name][...] = matrix

    return undo


def _gpt_oss(name: str, array: Floats, match: re.Match[str]) -> Iterator[tuple[str, Floats, Undo]]:
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


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = config.get("rope_parameters") or config
    return found


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
    rope = _rope(config)
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
    part = _rope(config).get("partial_rotary_factor", 0.5)
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
    rope, dim = _rope(config), config["head_dim"]
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
    part = _rope(config).get("partial_rotary_factor", 1.0)
    return {
        **_experts(config),
        "expert_gating_func": 2,
        "expert_feed_forward_length": config["intermediate_size"],
        "rope.dimension_count": int(config["head_dim"] * part),
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
}
