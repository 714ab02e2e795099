"""Writes a GGUF file of a shape with recurrent layers or latent attention, with random weights, for
llama.cpp.

    python bench/hybrid_gguf.py qwen3.5-0.8b Q8_0 FILE.gguf

Needs gguf-py. What llama.cpp's conversion does to tensors is in `tests/fakes/gguf_hybrids.py`; here
only the shapes of its results are used, and each matrix repeats a few random rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from shapes import SHAPES, config_of

from quire.models import build_program
from quire.weights.dummy import DummyStore

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "fakes"))
from gguf_blocks import random_blocks
from gguf_hybrids import HybridFile

ARCHITECTURES: Mapping[str, str] = {
    "qwen3.5-0.8b": "qwen35", "qwen3.5-4b": "qwen35", "lfm2-1.2b": "lfm2",
    "granite-4-h-tiny": "granitehybrid", "qwen3-next-4-layers": "qwen3next",
    "deepseek-v2-lite": "deepseek2",
}  # fmt: skip
MIXES: Mapping[str, tuple[str, str]] = {
    "BF16": ("BF16", "BF16"), "Q8_0": ("Q8_0", "Q8_0"), "Q4_0": ("Q4_0", "Q6_K"),
    "Q4_K_M": ("Q4_K", "Q6_K"),
}  # fmt: skip
"""The type of matrices, and that of the embedding and the head."""
_FLOATS = ("norm", "bias", "ffn_gate_inp", "conv", "ssm_a", "ssm_d", "exp_probs_b")
_ROWS = 64
Bytes = NDArray[np.uint8]


class _Shapes(HybridFile):
    """The names and shapes of a file's tensors. Zeros that take no memory stand for the numbers."""

    def __init__(self, architecture: str, config: Mapping[str, Any]) -> None:
        self.architecture, self.config = architecture, config
        store = DummyStore(build_program(dict(config)))
        zeros = {
            name: np.broadcast_to(np.float32(0), store.describe(name).shape)
            for name in store.names()
        }
        self.stored = list(self._without_numbers(zeros))

    def _without_numbers(self, zeros: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
        for name, array, undo in self.converted(zeros):
            yield name, np.broadcast_to(np.float32(0), array.shape), undo


def write(name: str, mix: str, path: Path) -> None:
    """Tensor by tensor: never more than one is in memory."""
    config = _as_converted(config_of(name))
    shapes = _Shapes(ARCHITECTURES[name], config)
    writer = gguf.GGUFWriter(path, shapes.architecture)
    shapes._write_keys(writer, {})
    tensors = [(name, array.shape, _kind(name, array.shape, mix)) for name, array, _ in
               shapes.stored]  # fmt: skip
    for tensor, shape, kind in tensors:
        quant = gguf.GGMLQuantizationType[kind]
        size = gguf.quant_shape_to_byte_shape(shape, quant)
        writer.add_tensor_info(
            tensor, size, np.dtype(np.uint8), int(np.prod(size)), raw_dtype=quant
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for number, (tensor, shape, kind) in enumerate(tensors):
        if tensor.endswith("ssm_a"):  # decays, which are negative
            writer.write_tensor_data(np.full(shape, -1, np.float32).view(np.uint8))
        else:
            writer.write_tensor_data(_numbers(shape, kind, number))
    writer.close()


def _as_converted(config: dict[str, Any]) -> dict[str, Any]:
    """With the keys that a published config.json has and the shape leaves to defaults."""
    layers = config["num_hidden_layers"]
    if "full_attention_interval" in config:
        every = config["full_attention_interval"]
        config["layer_types"] = [
            "linear_attention" if (layer + 1) % every else "full_attention"
            for layer in range(layers)
        ]
    if "full_attn_idxs" in config:
        full = config["full_attn_idxs"]
        config["layer_types"] = [
            "full_attention" if layer in full else "conv" for layer in range(layers)
        ]
    return {"n_group": 1, "topk_group": 1, **config}


def _kind(name: str, shape: tuple[int, ...], mix: str) -> str:
    most, head = MIXES[mix]
    if len(shape) == 1 or any(part in name for part in _FLOATS):
        return "F32"
    kind = head if name.startswith(("token_embd", "output")) else most
    block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0]
    return kind if shape[-1] % block == 0 else "F32"


def _numbers(shape: tuple[int, ...], kind: str, seed: int) -> Bytes:
    """Small random numbers; norms are ones."""
    depth, rows = shape[-1], int(np.prod(shape[:-1], dtype=np.int64))
    size = gguf.quant_shape_to_byte_shape(shape, gguf.GGMLQuantizationType[kind])
    if kind == "F32" and len(shape) == 1:
        return np.ones(shape, np.float32).view(np.uint8)
    if kind in ("F32", "BF16"):
        some = np.random.default_rng(seed).normal(0, 0.02, (min(rows, _ROWS), depth))
        numbers = some.astype(np.float32)
        if kind == "BF16":
            pattern = (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        else:
            pattern = numbers.view(np.uint8)
    else:
        pattern, _ = random_blocks(kind, min(rows, _ROWS), depth, seed)
    return np.resize(pattern.reshape(-1), size)


def main() -> int:
    """Writes the file that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=sorted(set(ARCHITECTURES) & set(SHAPES)))
    parser.add_argument("mix", choices=sorted(MIXES))
    parser.add_argument("file", type=Path)
    args = parser.parse_args()
    write(args.shape, args.mix, args.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
