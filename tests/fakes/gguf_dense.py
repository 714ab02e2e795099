"""GGUF files of models without experts, written by gguf-py from checkpoints of transformers.

Names of tensors and keys are gguf-py's; what llama.cpp's conversion does to tensors is done again
here. Source: llama.cpp, conversion/.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from gguf_files import permuted
from gguf_model_file import Floats, ModelFile, Stored, Tensors, Undo, into, rope_of, unpermuted
from numpy.typing import NDArray

_SPELLINGS = {
    "num_hidden_layers": ("n_layer", "n_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "hidden_size": ("n_embd", "d_model"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length"),
}
_PAIRED = ("internlm2", "xverse", "baichuan", "minicpm", "olmo", "smollm3", "arcee", "mistral3")
_FUSED = ("gptneox", "bloom", "falcon")
_HEAD_NORM = re.compile(r"(.+\.[qk]_layernorm)\.norms\.(\d+)\.weight")
_SPLIT = re.compile(r"(model\.layers\.\d+)\.self_attn\.([qkv])_proj\.(weight|bias)")
_CONV1D = re.compile(r".+\.(c_attn|c_proj|c_fc)\.weight")


class DenseFile(ModelFile):
    """A model without experts."""

    def __init__(self, name: str, config: Mapping[str, Any], tensors: Tensors) -> None:
        """`name`: the architecture, and behind a colon what is special about this model."""
        found = dict(config)
        for usual, others in _SPELLINGS.items():
            found.setdefault(usual, next((config[o] for o in others if o in config), None))
        self.variant = name.partition(":")[2]
        self.xielu: dict[str, list[float]] = {}
        """Keys of Apertus' activation, of its tensors."""
        super().__init__(name.partition(":")[0], found, tensors)

    def own_keys(self) -> dict[str, Any]:
        return {**_KEYS.get(self.architecture, _none)(self.config), **self.xielu}

    def converted(self, tensors: Tensors) -> Iterator[Stored]:
        together: dict[str, list[str]] = {}
        for name, array in tensors.items():
            if ".act_fn." in name:
                self.xielu.setdefault(f"xielu.{name.rpartition('.')[2]}", []).append(array.item())
                continue
            if name == "lm_head.weight" and self.config.get("tie_word_embeddings"):
                continue
            if match := _HEAD_NORM.fullmatch(name):
                together.setdefault(f"{match[1]}.weight", []).append(name)
            elif self.variant == "fused" and (match := _SPLIT.fullmatch(name)):
                together.setdefault(f"{match[1]}.self_attn.qkv_proj.{match[3]}", []).append(name)
            else:
                yield from self._converted(name, array)
        for name, members in together.items():
            parts = [tensors[member] for member in sorted(members, key=_order)]
            stack = np.stack if "layernorm" in name else np.concatenate
            undo = _taken_apart(sorted(members, key=_order), stacked="layernorm" in name)
            yield self.llama_name(name), stack(parts), undo
        yield from self._rope_factors()

    def _converted(self, name: str, array: Floats) -> Iterator[Stored]:
        config = self.config
        stored = self.llama_name(_shortened(name) if self.architecture == "bloom" else name)
        if self.architecture in _PAIRED and (".q_proj." in name or ".k_proj." in name):
            key = "num_attention_heads" if ".q_proj." in name else "num_key_value_heads"
            yield stored, permuted(array, config[key]), unpermuted(name, config[key])
        elif self.architecture in _FUSED and "query_key_value" in name:
            rows = _q_then_k_then_v(array.shape[0], config)
            yield stored, array[rows], into(name, (rows,))
        elif self.architecture == "nemotron" and name.endswith("norm.weight"):
            yield stored, array + np.float32(1), _minus_one(name)
        elif self.architecture == "gpt2" and _CONV1D.fullmatch(name):
            yield stored, array.T, _transposed(name)
        else:
            yield stored, array, into(name, (...,))

    def _rope_factors(self) -> Iterator[Stored]:
        rope = rope_of(self.config)
        if rope.get("rope_type") == "llama3":
            factors = _llama3_factors(rope, _head_dim(self.config))
            yield "rope_freqs.weight", factors, lambda values, held: None  # noqa: ARG005
        for kind in ("long", "short"):
            if factors := rope.get(f"{kind}_factor"):
                stored = f"rope_factors_{kind}.weight"
                yield stored, np.array(factors, np.float32), lambda values, held: None  # noqa: ARG005


def _shortened(name: str) -> str:
    return name.removeprefix("transformer.")


def _order(name: str) -> int:
    """q before k before v; heads by their number."""
    match = _HEAD_NORM.fullmatch(name)
    return int(match[2]) if match else "qkv".index(_SPLIT.fullmatch(name)[2])  # type: ignore[index]


def _q_then_k_then_v(rows: int, config: Mapping[str, Any]) -> NDArray[np.int64]:
    """Which row of the checkpoint each of the file's is."""
    heads = config["num_attention_heads"]
    groups = heads
    if "multi_query" in config:  # Falcon
        groups = config["num_kv_heads"] if config["new_decoder_architecture"] else 1
    by_group = np.arange(rows).reshape(groups, heads // groups + 2, -1)
    parts = (by_group[:, :-2], by_group[:, -2], by_group[:, -1])
    return np.concatenate([part.reshape(-1) for part in parts])


def _taken_apart(members: list[str], *, stacked: bool) -> Undo:
    def undo(values: Floats, held: Tensors) -> None:
        if stacked:
            for name, row in zip(members, values, strict=True):
                held[name][...] = row
            return
        ends = np.cumsum([held[name].shape[0] for name in members])
        for name, part in zip(members, np.split(values, ends[:-1]), strict=True):
            held[name][...] = part

    return undo


def _minus_one(name: str) -> Undo:
    def undo(values: Floats, held: Tensors) -> None:
        held[name][...] = values - np.float32(1)

    return undo


def _transposed(name: str) -> Undo:
    def undo(values: Floats, held: Tensors) -> None:
        held[name][...] = values.T

    return undo


def _none(config: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    return {}


def _head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _rotated(config: Mapping[str, Any]) -> dict[str, Any]:
    part = rope_of(config).get("partial_rotary_factor", 1.0)
    return {"rope.dimension_count": round(_head_dim(config) * part)}


def _llama3_factors(rope: Mapping[str, Any], dim: int) -> Floats:
    """conversion/llama.py, `generate_extra_tensors`."""
    wavelengths = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    turns = rope["original_max_position_embeddings"] / wavelengths
    smooth = (turns - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    found = np.where(turns > high, 1.0, np.where(turns < low, factor, between))
    return found.astype(np.float32)


def _eps(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {"attention.layer_norm_epsilon": float(config[key])}


def _phi3(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = rope_of(config)
    keys = {
        "rope.scaling.original_context_length": config["original_max_position_embeddings"],
        "attention.sliding_window": config.get("sliding_window") or 0,
        **_rotated(config),
    }
    if rope["rope_type"] == "longrope":
        original = config["original_max_position_embeddings"]
        scale = config["max_position_embeddings"] / original
        factor = np.sqrt(1 + np.log(scale) / np.log(original)) if scale > 1 else 1.0
        keys["rope.scaling.attn_factor"] = float(factor)
    return keys


def _phi2(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_eps(config, "layer_norm_eps"),
        **_rotated(config),
        "feed_forward_length": 4 * config["hidden_size"],
        "attention.head_count_kv": config["num_attention_heads"],
        "rope.freq_base": None,
    }


def _stablelm(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_eps(config, "layer_norm_eps"),
        **_rotated(config),
        "use_parallel_residual": bool(config["use_parallel_residual"]),
    }


def _gptneox(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_eps(config, "layer_norm_eps"),
        **_rotated(config),
        "use_parallel_residual": bool(config["use_parallel_residual"]),
        "attention.head_count_kv": None,
        "rope.freq_base": None,
    }


def _falcon(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_eps(config, "layer_norm_epsilon"),
        "context_length": 2048,
        "tensor_data_layout": "jploski",
        "feed_forward_length": 4 * config["hidden_size"],
        "attention.head_count_kv": config.get("num_kv_heads")
        if config["new_decoder_architecture"]
        else 1,
        "rope.freq_base": None,
    }


def _bloom(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_eps(config, "layer_norm_epsilon"),
        "context_length": config.get("seq_length", 64),
        "feed_forward_length": 4 * config["hidden_size"],
        "attention.head_count_kv": config["num_attention_heads"],
        "rope.freq_base": None,
    }


def _mpt(config: Mapping[str, Any]) -> dict[str, Any]:
    attention = config["attn_config"]
    return {
        "attention.layer_norm_epsilon": 1e-5,
        "feed_forward_length": 4 * config["hidden_size"],
        "attention.clamp_kqv": attention["clip_qkv"],
        "attention.max_alibi_bias": float(attention["alibi_bias_max"]),
        "rope.freq_base": None,
    }


def _gpt2(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_eps(config, "layer_norm_epsilon"),
        "feed_forward_length": 4 * config["hidden_size"],
        "rope.freq_base": None,
    }


def _olmo(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"attention.layer_norm_epsilon": 1e-5, "attention.clamp_kqv": config["clip_qkv"]}


def _windows(config: Mapping[str, Any]) -> dict[str, Any]:
    if config.get("sliding_window") is None:
        return {}
    return {
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [
            kind == "sliding_attention" for kind in config["layer_types"]
        ],
    }


def _olmo2(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**_windows(config), **_yarn(config)}


def _yarn(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = rope_of(config)
    if rope.get("rope_type") != "yarn":
        return {}
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": float(rope["factor"]),
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        "rope.scaling.yarn_beta_fast": float(rope["beta_fast"]),
        "rope.scaling.yarn_beta_slow": float(rope["beta_slow"]),
    }


def _command_r(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_eps(config, "layer_norm_eps"),
        "logit_scale": float(config["logit_scale"]),
        "rope.scaling.type": "none",
    }


def _cohere2(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_command_r(config),
        "attention.sliding_window": config["sliding_window"],
        "rope.dimension_count": _head_dim(config),
    }


def _nemotron(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**_eps(config, "norm_eps"), **_rotated(config), "rope.scaling.type": "none"}


def _starcoder2(config: Mapping[str, Any]) -> dict[str, Any]:
    return _eps(config, "norm_epsilon")


def _minicpm(config: Mapping[str, Any]) -> dict[str, Any]:
    """Of a Granite model with the same factors."""
    return {
        "embedding_scale": float(config["embedding_multiplier"]),
        "residual_scale": float(config["residual_multiplier"]),
        "logit_scale": float(config["logits_scaling"]),
        **({"rope.scaling.type": "longrope"} if rope_of(config).get("long_factor") else {}),
    }


def _hunyuan(config: Mapping[str, Any]) -> dict[str, Any]:
    rope, dim = rope_of(config), config["head_dim"]
    return {
        "rope.freq_base": float(rope["rope_theta"] * rope["alpha"] ** (dim / (dim - 2))),
        "rope.scaling.type": "none",
        "rope.scaling.factor": 1.0,
    }


def _mistral3(config: Mapping[str, Any]) -> dict[str, Any]:
    rope = rope_of(config)
    if "llama_4_scaling_beta" not in rope:
        return {}
    return {
        **_yarn(config),
        "rope.scaling.yarn_log_multiplier": float(rope["mscale_all_dim"]),
        "attention.temperature_scale": float(rope["llama_4_scaling_beta"]),
    }


_KEYS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "phi3": _phi3,
    "phi2": _phi2,
    "starcoder2": _starcoder2,
    "stablelm": _stablelm,
    "gptneox": _gptneox,
    "falcon": _falcon,
    "bloom": _bloom,
    "mpt": _mpt,
    "gpt2": _gpt2,
    "olmo": _olmo,
    "olmo2": _olmo2,
    "exaone4": _windows,
    "command-r": _command_r,
    "cohere2": _cohere2,
    "nemotron": _nemotron,
    "minicpm": _minicpm,
    "glm4": _rotated,
    "chatglm": _rotated,
    "hunyuan-dense": _hunyuan,
    "mistral3": _mistral3,
}
"""The keys that an architecture has beside those of all, or instead of them. None: it has not."""
