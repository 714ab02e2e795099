"""The formats that are compared, and models whose matrices are rounded to GGUF's types."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import gguf
import numpy as np
from numpy.typing import NDArray

from quire.backends.base import Dtype
from quire.config.quantization import Quantization
from quire.gguf.block_types import BLOCK_TYPES, BlockType
from quire.models.quantised import BlockFormats
from quire.models.quantised.block_formats import BLOCK_FORMATS
from quire.models.quantised.shipped_program import with_shipped_formats
from quire.program import Attention, Experts, Linear, Logits, Program
from quire.program.values import ActivationBits
from quire.weights import HostTensor, WeightStore

Floats = NDArray[np.float32]
Blocks = NDArray[np.uint8]
Rounding = Callable[[Floats, BlockType], Blocks]
"""From a matrix to the bytes of its blocks, [rows, bytes]."""


@dataclass(frozen=True)
class Choice:
    """The number formats of a run. `blocks`: a type of GGUF's for all matrices."""

    dtype: Dtype = "bfloat16"
    weights: Quantization | Literal["dense"] = "dense"
    kv_cache: str = "bfloat16"
    blocks: str | None = None
    activation_bits: ActivationBits = 16
    is_calibrated: bool = False
    """Columns have factors, from another text than the one that is measured."""


TRUTH = Choice("float32", "dense", "float32")
FORMATS: dict[str, Choice] = {
    "bfloat16": Choice(),
    "bfloat16, KV int8": Choice(kv_cache="int8"),
    "bfloat16, KV int4": Choice(kv_cache="int4"),
    "int8": Choice(weights="int8"),
    "int8, KV int8": Choice(weights="int8", kv_cache="int8"),
    "int8_w8a8": Choice(weights="int8_w8a8"),
    "int8_w8a8, KV int8": Choice(weights="int8_w8a8", kv_cache="int8"),
    "int4": Choice(weights="int4"),
    "int4_w4a8": Choice(weights="int4_w4a8"),
    "int4_w4a8, KV int8": Choice(weights="int4_w4a8", kv_cache="int8"),
    "int8_w8a8, calibrated": Choice(weights="int8_w8a8", is_calibrated=True),
    "int4, calibrated": Choice(weights="int4", is_calibrated=True),
    "int4_w4a8, calibrated": Choice(weights="int4_w4a8", is_calibrated=True),
    "int4_head4": Choice(weights="int4_head4"),
    "int4_w4a8_head4": Choice(weights="int4_w4a8_head4"),
}
OTHERS = {
    "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL",
}  # fmt: skip
"""Types that llama.cpp uses for a matrix whose rows are not whole blocks of 256. Source: llama.cpp,
llama-quant.cpp, `tensor_type_fallback`."""
_BY_NAME = {kind.name: kind for kind in BLOCK_TYPES.values()}
_WITH_GGUF_PY = ("Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")
_WITH_GGML = (
    "Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K", "Q4_1", "Q4_0", "IQ4_NL",
    "IQ4_XS",
)  # fmt: skip


def block_formats(types: Iterable[str]) -> dict[str, Choice]:
    """Each type with activations of 16 bits and of 8."""
    return {
        f"GGUF {name}{', a8' * (bits == 8)}": Choice(blocks=name, activation_bits=bits)
        for name in types
        for bits in (16, 8)
    }


def with_gguf_py() -> tuple[tuple[str, ...], Rounding]:
    """The types that gguf-py rounds to, and how."""

    def rounded(values: Floats, kind: BlockType) -> Blocks:
        blocks: Blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType(kind.code))
        return blocks.reshape(len(values), -1)

    return _WITH_GGUF_PY, rounded


def with_ggml(library: Path) -> tuple[tuple[str, ...], Rounding]:
    """The types that llama.cpp rounds to, and how: without an importance matrix. `library`: its
    `libggml-base.so`, or another one that has `ggml_quantize_chunk` (PyPI's xllamacpp)."""
    ggml = ctypes.CDLL(str(library))
    quantize = ggml.ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    floats = ctypes.POINTER(ctypes.c_float)
    quantize.argtypes = [
        ctypes.c_int, floats, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64,
        floats,
    ]  # fmt: skip

    def rounded(values: Floats, kind: BlockType) -> Blocks:
        rows, width = values.shape
        values = np.ascontiguousarray(values)
        out = np.zeros((rows, width // kind.block_items * kind.block_bytes), np.uint8)
        done = quantize(
            kind.code, values.ctypes.data_as(floats), out.ctypes.data, 0, rows, width, None
        )
        if done != out.nbytes:
            raise RuntimeError(f"{library}: {done} bytes of {kind.name} instead of {out.nbytes}")
        return out

    return _WITH_GGML, rounded


def type_of(name: str, width: int) -> BlockType:
    """The type, or its substitute for rows that are not whole blocks."""
    kind = _BY_NAME[name]
    return kind if width % kind.block_items == 0 else _BY_NAME[OTHERS[name]]


class RoundedStore(WeightStore):
    """A model whose matrices are in blocks of one type; reading their numbers expands them."""

    def __init__(self, store: WeightStore, types: dict[str, BlockType], rounding: Rounding) -> None:
        self._store, self._types, self._rounding = store, types, rounding

    def names(self) -> Iterable[str]:
        return self._store.names()

    def get(self, name: str) -> HostTensor:
        kind = self._types.get(name)
        if kind is None:
            return self._store.get(name)
        shape = self._store.get(name).shape
        code = gguf.GGMLQuantizationType(kind.code)
        values = gguf.quants.dequantize(self._blocks(name, kind), code)
        data = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8)
        return HostTensor(name, "F32", shape, data, f"rounded to {kind.name}")

    def stored(self, name: str) -> HostTensor:
        kind = self._types.get(name)
        if kind is None:
            return self._store.get(name)
        blocks = self._blocks(name, kind).reshape(-1)
        return HostTensor(
            name, "BLOCKS", self._store.get(name).shape, blocks, f"rounded to {kind.name}",
            format=BLOCK_FORMATS[kind.name], block_type=kind,
        )  # fmt: skip

    def _blocks(self, name: str, kind: BlockType) -> Blocks:
        return self._rounding(self._store.get(name).to_float32(), kind)

    def close(self) -> None:
        self._types = {}


def _block_type(blocks: str, name: str, program: Program) -> str:
    """The type of a tensor; that of `Q4_K_M` depends on what it is and on its layer. Source:
    llama.cpp, llama-quant.cpp, `llama_tensor_get_type` and `use_more_bits`."""
    if blocks != "Q4_K_M":
        return blocks
    if "embed" in name or "lm_head" in name:
        return "Q6_K"
    layers = sum(isinstance(op, Attention) for op in program.ops)
    layer = next(int(word) for word in name.split(".") if word.isdigit())
    first = layers // 8
    is_finer = layer < first or layer >= 7 * layers // 8 or (layer - first) % 3 == 2
    return "Q6_K" if is_finer and ("v_proj" in name or "down_proj" in name) else "Q4_K"


def rounded(
    program: Program, store: WeightStore, choice: Choice, rounding: Rounding
) -> tuple[Program, WeightStore]:
    """The program and the weights with all matrices of linears and the head in blocks."""
    if choice.blocks is None:
        return program, store
    matrices = [op.weight for op in program.ops if isinstance(op, Linear | Logits)]
    if any(isinstance(op, Experts) for op in program.ops):
        raise ValueError(f"{program.name}: experts are not rounded here")
    types = {
        part.name: type_of(_block_type(choice.blocks, part.name, program), part.shape[-1])
        for param in matrices
        for part in param.parts
    }
    names = {name: kind.name for name, kind in types.items()}
    held = with_shipped_formats(program, BlockFormats(names, choice.activation_bits))
    return held, RoundedStore(store, types, rounding)
