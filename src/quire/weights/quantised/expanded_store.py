"""`ExpandedStore`: a quantised checkpoint whose matrices are read as float32.

"...q_proj.weight" stands for the tensors that it is made of. A backend rounds it to the model's
dtype, or to the format that was asked for, as it does with any other float32 tensor.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.models.quantised import Expanded
from quire.weights.quantised import expand
from quire.weights.quantised.groups import Floats
from quire.weights.quantised.made_store import MadeStore
from quire.weights.store import HostTensor, WeightStore

_SCALES = (".weight_scale_inv", ".weight_scale", ".SCB")
_CODES = {"gptq": ".qweight", "pack-quantized": ".weight_packed"}
_STATES = tuple(f".weight.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))
_BESIDE = (
    "weight_scale_inv", "weight_scale", "input_scale", "output_scale", "weight_zero_point",
    "weight_shape", "weight_g_idx", "weight_packed", "qweight", "qzeros", "scales", "g_idx", "SCB",
    "weight_format",
)  # fmt: skip
_OF_CACHE = (".k_scale", ".v_scale", ".q_scale", ".kv_scale", ".prob_scale")
"""For a KV cache of 8-bit floats, which is none of ours."""
_MAX_STATE_BYTES = 65536
_MAX_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class FourBits:
    """A matrix of bitsandbytes: two codes a byte, the high one first, over all of it."""

    packed: NDArray[np.uint8]
    table: Floats
    """[16]"""
    scales: Floats
    """Of each block of `block` numbers."""
    block: int
    shape: tuple[int, ...]


class ExpandedStore(MadeStore):
    """Matrices as plain float32 numbers."""

    def __init__(self, store: WeightStore, format: Expanded) -> None:
        self._format = format
        bases = {base for name in store.names() if (base := self._base_of(name)) is not None}
        super().__init__(store, bases, ("weight", "weight.absmax", *_BESIDE))

    @property
    def num_expanded(self) -> int:
        """How many matrices are not as they are stored."""
        return len(self._bases)

    def _is_plain(self, name: str) -> bool:
        return not self._is_part(name)

    def _described(self, name: str, base: str) -> HostTensor:
        return HostTensor(name, "F32", self._shape(base), np.empty(0, np.uint8), self.source)

    def _made(self, name: str, base: str) -> HostTensor:
        values = np.ascontiguousarray(self._values(base), np.float32)
        data = values.reshape(-1).view(np.uint8)
        return HostTensor(name, "F32", values.shape, data, self.source)

    def _base_of(self, name: str) -> str | None:
        """The module whose weight this tensor makes a quantised one."""
        if self._format.layout in _CODES:
            ends: tuple[str, ...] = (_CODES[self._format.layout],)
        else:
            ends = (*_SCALES, *_STATES)
        found = next((end for end in ends if name.endswith(end)), None)
        return None if found is None else name.removesuffix(found)

    def _is_part(self, name: str) -> bool:
        """Whether it is a part of a weight, or of no use here."""
        before, _, last = name.rpartition(".")
        module = name.partition(".weight.")[0]
        if name.endswith(_OF_CACHE) and self._format.layout in ("fp8", "pack-quantized"):
            return True
        return (before in self._bases and last in _BESIDE) or (
            module != name and module in self._bases
        )

    def _shape(self, base: str) -> tuple[int, ...]:
        layout = self._format.layout
        if layout in _CODES:
            rows, columns = self._store.shape(base + _CODES[layout])
            return (columns, 8 * rows) if layout == "gptq" else (rows, 8 * columns)
        state = self._state(base)
        return self._store.shape(f"{base}.weight") if state is None else _shape_of(state)

    def _values(self, base: str) -> Floats:
        layout = self._format.layout
        if layout == "gptq":
            return expand.gptq(
                self._integers(f"{base}.qweight", np.int32),
                self._integers(f"{base}.qzeros", np.int32),
                self._floats(f"{base}.scales"),
                self._integers(f"{base}.g_idx", np.int32),
                self._format.zero_offset,
            )
        if layout == "pack-quantized":
            return self._packed(base)
        if layout == "bitsandbytes":
            return self._bitsandbytes(base)
        codes = self._integers(f"{base}.weight", np.uint8)
        return expand.fp8(codes, self._scales_of(base), self._format.block)

    def _scales_of(self, base: str) -> Floats:
        """Of FP8."""
        scale = next(f"{base}{end}" for end in _SCALES if f"{base}{end}" in self._stored)
        return self._floats(scale)

    @property
    def _block(self) -> tuple[int, int] | None:
        return self._format.block

    def _packed(self, base: str) -> Floats:
        codes = self._integers(f"{base}.weight_packed", np.int32)
        scales = self._floats(f"{base}.weight_scale")
        has_zeros = f"{base}.weight_zero_point" in self._stored
        zeros = self._integers(f"{base}.weight_zero_point", np.int32) if has_zeros else None
        order = self._integers(f"{base}.weight_g_idx", np.int32)
        return expand.pack_quantized(codes, scales, zeros, order)

    def _bitsandbytes(self, base: str) -> Floats:
        if self._state(base) is None:
            codes = self._integers(f"{base}.weight", np.int8)
            return expand.rows_of_8_bits(codes, self._floats(f"{base}.SCB"))
        found = self._blocks_of_4_bits(base)
        return expand.blocks_of_4_bits(
            found.packed, found.table, found.scales, found.block, found.shape
        )

    def _blocks_of_4_bits(self, base: str) -> FourBits:
        """Raises ValueError for a matrix of another kind."""
        state = self._state(base)
        if state is None:
            raise ValueError("there is no quant_state of 4 bits")
        packed = self._integers(f"{base}.weight", np.uint8)
        table = self._floats(f"{base}.weight.quant_map")
        if table.size != 16 or not np.isfinite(table).all():
            raise ValueError("quant_map is no table of 16 numbers")
        scales = self._scales(base, state)
        shape, block = _shape_of(state), block_size(state, "blocksize")
        return FourBits(packed, table, scales, block, shape)

    def _scales(self, base: str, state: dict[str, Any]) -> Floats:
        name = f"{base}.weight.absmax"
        if f"{base}.weight.nested_absmax" not in self._stored:
            return self._floats(name)
        table = self._floats(f"{base}.weight.nested_quant_map")
        if table.size != 256:
            raise ValueError("nested_quant_map is no table of 256 numbers")
        nested = expand.NestedScales(
            table,
            self._floats(f"{base}.weight.nested_absmax"),
            block_size(state, "nested_blocksize"),
            float(state.get("nested_offset", 0.0)),
        )
        return nested.expand(self._integers(name, np.uint8))

    def _state(self, base: str) -> dict[str, Any] | None:
        """What bitsandbytes says of a 4-bit weight; None: it has none."""
        found = next((f"{base}{end}" for end in _STATES if f"{base}{end}" in self._stored), None)
        if found is None:
            return None
        raw = self._integers(found, np.uint8).reshape(-1)
        if raw.size > _MAX_STATE_BYTES:
            raise ValueError(f"{found} has {raw.size} bytes")
        state = json.loads(raw.tobytes())
        if not isinstance(state, dict):
            raise ValueError(f"{found} is no JSON object")
        return state

    def _floats(self, name: str) -> Floats:
        return self._store.get(name).to_float32()

    def _integers(self, name: str, dtype: type[np.generic]) -> NDArray[Any]:
        found = self._store.integers(name)
        if found.dtype != np.dtype(dtype):
            raise ValueError(f"{name!r} has numbers of type {found.dtype}, not {dtype.__name__}")
        return found


def block_size(state: dict[str, Any], key: str) -> int:
    """Raises ValueError."""
    size = state.get(key)
    if isinstance(size, int) and 0 < size <= _MAX_BLOCK:
        return size
    raise ValueError(f"{key} is {size!r}")


def _shape_of(state: dict[str, Any]) -> tuple[int, ...]:
    shape = state.get("shape")
    if isinstance(shape, list) and len(shape) == 2 and all(isinstance(n, int) for n in shape):
        return tuple(shape)
    raise ValueError(f"shape is {shape!r}")
