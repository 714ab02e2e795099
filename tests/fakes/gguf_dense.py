"""GGUF files of models without experts, written by gguf-py from checkpoints of transformers.

Names of tensors and keys are gguf-py's; what llama.cpp's conversion does to tensors is done again
here. Source: llama.cpp, conversion/.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gguf_dense_keys import KEYS, head_dim_of
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
        keys = KEYS.get(self.architecture)
        return {**(keys(self.config) if keys else {}), **self.xielu}

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
            factors = _llama3_factors(rope, head_dim_of(self.config))
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


def _llama3_factors(rope: Mapping[str, Any], dim: int) -> Floats:
    """conversion/llama.py, `generate_extra_tensors`."""
    wavelengths = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    turns = rope["original_max_position_embeddings"] / wavelengths
    smooth = (turns - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    found = np.where(turns > high, 1.0, np.where(turns < low, factor, between))
    return found.astype(np.float32)
