"""GGUF files of whole models, written by gguf-py from checkpoints of transformers: what models with
experts and others have in common.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf_blocks import random_blocks
from gguf_files import byte_level_metadata
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Tensors = dict[str, Floats]
Undo = Callable[[Floats, Tensors], None]
"""Writes a tensor of the file to where it came from."""
Stored = tuple[str, Floats, Undo]
"""A tensor of the file: its name, its numbers before they are rounded."""

_FLOAT = ("norm", "bias", "ffn_gate_inp", "sinks", "exp_probs_b", "rope_f")
_HALVES_OF_SCALES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


class ModelFile:
    """A model as a GGUF file, and the very numbers that it holds."""

    def __init__(self, architecture: str, config: Mapping[str, Any], tensors: Tensors) -> None:
        """`config`, `tensors`: of a checkpoint of transformers."""
        self.architecture, self.config = architecture, config
        self.held: Tensors = {name: array.copy() for name, array in tensors.items()}
        """What the file holds, under transformers' names: `write` rounds them."""
        self.stored = list(self.converted(tensors))

    def names(self) -> list[str]:
        return [name for name, _, _ in self.stored]

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
        for name, array, undo in self.stored:
            if name == without:
                continue
            is_float = array.ndim == 1 or any(part in name for part in _FLOAT)
            kind = "F32" if is_float else type_of(name)
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

    def converted(self, tensors: Tensors) -> Iterator[Stored]:
        """What llama.cpp's conversion makes of the tensors."""
        raise NotImplementedError

    def own_keys(self) -> dict[str, Any]:
        """Keys of the architecture, without its name, beside or instead of those of all."""
        raise NotImplementedError

    def llama_name(self, name: str) -> str:
        """gguf-py's name of a tensor of transformers."""
        names = _names(self.architecture, self.config["num_hidden_layers"])
        # Published files of Kimi Linear have these names; those of transformers have the others.
        name = re.sub(r"\.block_sparse_moe\.(\w+_proj)\.", r".mlp.\1.", name)
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise RuntimeError(f"gguf-py has no name for {name} in {self.architecture}")
        return str(found)

    def _write_keys(self, writer: Any, keys: Mapping[str, Any]) -> None:
        config = self.config
        values: dict[str, Any] = {
            "context_length": config["max_position_embeddings"],
            "embedding_length": config["hidden_size"],
            "block_count": config["num_hidden_layers"],
            "feed_forward_length": config.get("intermediate_size"),
            "attention.head_count": config["num_attention_heads"],
            "attention.head_count_kv": config.get("num_key_value_heads"),
            "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps"),
            "rope.freq_base": float(rope_of(config).get("rope_theta", 10000.0)),
            **self.own_keys(),
            **keys,
        }
        if config.get("head_dim"):
            values = {"attention.key_length": config["head_dim"],
                      "attention.value_length": config["head_dim"], **values}  # fmt: skip
        for key, value in values.items():
            own = "" if key.startswith("xielu.") else f"{self.architecture}."
            _add(writer, own + key, value)
        vocabulary = byte_level_metadata(config["vocab_size"])
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(vocabulary["tokenizer.ggml.tokens"])
        kinds = vocabulary["tokenizer.ggml.token_type"]
        writer.add_token_types([kind.value for kind in kinds])
        writer.add_token_merges(vocabulary["tokenizer.ggml.merges"])
        writer.add_bos_token_id(vocabulary["tokenizer.ggml.bos_token_id"])
        writer.add_eos_token_id(vocabulary["tokenizer.ggml.eos_token_id"])


@cache
def _names(architecture: str, layers: int) -> gguf.TensorNameMap:
    arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    return gguf.get_tensor_name_map(arch, layers)


def rope_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """`rope_parameters`, of layers without a window; or the whole where there are none."""
    found: Mapping[str, Any] = config.get("rope_parameters") or config
    return found.get("full_attention") or found


def _add(writer: Any, key: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
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


def into(name: str, place: tuple[Any, ...]) -> Undo:
    def undo(values: Floats, held: Tensors) -> None:
        held[name][place] = values

    return undo


def unstacked(members: list[str]) -> Undo:
    def undo(values: Floats, held: Tensors) -> None:
        for name, matrix in zip(members, values, strict=True):
            held[name][...] = matrix

    return undo


def unpermuted(name: str, heads: int) -> Undo:
    def undo(values: Floats, held: Tensors) -> None:
        pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
        held[name][...] = pairs.swapaxes(1, 2).reshape(values.shape)

    return undo
