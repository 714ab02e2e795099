"""Layouts whose codes are floats: FP8, FP4 with scales of 8 bits, and bitsandbytes.

Sources: transformers `integrations/finegrained_fp8.py`, `integrations/fbgemm_fp8.py`; bitsandbytes
`functional.py`; ModelOpt `quantization/qtensor/nvfp4_tensor.py`; compressed-tensors
`compressors/nvfp4`; the OCP Microscaling formats specification.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError
from quire.program.values import GroupedFormat
from quire.weights.quantised import expand, unpack
from quire.weights.quantised.groups import LEVELS, Bytes, Floats, Groups
from quire.weights.quantised.layout import Layout, Parts, Shape

if TYPE_CHECKING:
    from quire.models.quantised import Shipped

_STATES = tuple(f"weight.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))
_MAX_STATE_BYTES = 65536
_MAX_BLOCK = 1 << 20


class Fp8(Layout):
    """weight [N, K] in E4M3, with a scale for the matrix, for each row, or for each block."""

    codes = ("weight_scale_inv", "weight_scale")
    others = ("weight_scale_inv", "weight_scale", "input_scale", "input_scale_ub", "output_scale")

    def is_here(self, parts: Parts) -> bool:
        return parts.holds("weight", np.uint8)

    def shape(self, parts: Parts) -> Shape:
        return parts.shape("weight")

    def numbers(self, parts: Parts) -> Floats:
        return expand.fp8(parts.integers("weight", np.uint8), self._scales(parts), parts.how.block)

    def fits(self, parts: Parts, shipped: Shipped) -> bool:
        return len(parts.shape("weight")) == 2 and shipped.format.table == "e4m3"

    def groups(self, parts: Parts, shipped: Shipped) -> Groups:
        codes = parts.integers("weight", np.uint8)
        format, (rows, depth) = shipped.format, codes.shape
        size = (rows, format.num_groups(depth))
        scales, block = self._scales(parts), parts.how.block
        if scales.size == 1:
            return Groups(format, codes, np.full(size, scales.reshape(()), np.float32))
        if not block:
            of_rows = np.broadcast_to(scales.reshape(rows, 1), size)
            return Groups(format, codes, np.ascontiguousarray(of_rows))
        of_blocks = scales.reshape(-(-rows // block[0]), -(-depth // block[1]))
        of_rows = np.repeat(of_blocks, block[0], axis=0)[:rows]
        columns = np.arange(size[1]) * format.group // block[1]
        return Groups(format, codes, np.ascontiguousarray(of_rows[:, columns]))

    def _scales(self, parts: Parts) -> Floats:
        return parts.floats(parts.first("weight_scale_inv", "weight_scale") or "weight_scale")


class _Fp4(Layout):
    """Two codes in a byte, the low half first: CODE [N, K / 2], weight_scale [N, groups]."""

    code: ClassVar[str]
    format: ClassVar[GroupedFormat]

    def shape(self, parts: Parts) -> Shape:
        rows, pairs = parts.matrix(self.code)
        return rows, 2 * pairs

    def numbers(self, parts: Parts) -> Floats:
        return self._held(parts, self.format).to_float32()

    def fits(self, parts: Parts, shipped: Shipped) -> bool:
        groups = parts.matrix("weight_scale")[1]
        return shipped.format == self.format and shipped.has_groups(groups, self.shape(parts)[1])

    def groups(self, parts: Parts, shipped: Shipped) -> Groups:
        return self._held(parts, shipped.format)

    @abstractmethod
    def _held(self, parts: Parts, format: GroupedFormat) -> Groups:
        """The matrix in the layout's own format."""

    def _codes(self, parts: Parts) -> Bytes:
        return unpack.pairs(parts.integers(self.code, np.uint8))


class Nvfp4(_Fp4):
    """ModelOpt: weight, weight_scale in E4M3 for each 16 weights, times weight_scale_2 [1]."""

    codes = ("weight_scale_2",)
    others = ("weight_scale", "weight_scale_2", "input_scale", "alpha")
    code = "weight"
    format = unpack.NVFP4

    def is_here(self, parts: Parts) -> bool:
        return parts.has("weight_scale_2")

    def numbers(self, parts: Parts) -> Floats:
        return expand.nvfp4(self._codes(parts), self._scales(parts), self._multiplier(parts))

    def _held(self, parts: Parts, format: GroupedFormat) -> Groups:
        """Return groups. Their format divides scales by a number per row instead of multiplying, so
        a weight may differ by one rounding from `numbers`."""
        divisor = np.float32(1) / self._multiplier(parts)
        return unpack.nvfp4(format, self._codes(parts), self._scales(parts), divisor)

    def _scales(self, parts: Parts) -> Bytes:
        if parts.has("pre_quant_scale"):
            raise ValueError("pre_quant_scale changes the activations, which is not supported")
        found: Bytes = parts.integers("weight_scale", np.uint8)
        return found

    def _multiplier(self, parts: Parts) -> np.float32:
        found: np.float32 = parts.floats("weight_scale_2").reshape(-1)[0]
        return found


class PackedNvfp4(_Fp4):
    """compressed-tensors: weight_packed, weight_scale in E4M3 for each 16 weights, divided by
    weight_global_scale [1]."""

    codes = ("weight_packed",)
    others = ("weight_scale", "weight_global_scale", "input_global_scale")
    code = "weight_packed"
    format = unpack.NVFP4

    def is_here(self, parts: Parts) -> bool:
        return parts.has("weight_global_scale") and parts.holds("weight_packed", np.uint8)

    def _held(self, parts: Parts, format: GroupedFormat) -> Groups:
        scales = parts.integers("weight_scale", np.uint8)
        divisor: np.float32 = parts.floats("weight_global_scale").reshape(-1)[0]
        return unpack.nvfp4(format, self._codes(parts), scales, divisor)


class Mxfp4(_Fp4):
    """Quark: weight, and weight_scale with an exponent for each 32 weights."""

    codes = ("weight_scale",)
    others = ("weight_scale", "input_scale")
    code = "weight"
    format = unpack.MXFP4

    def is_here(self, parts: Parts) -> bool:
        return parts.holds(self.code, np.uint8) and parts.holds("weight_scale", np.uint8)

    def _held(self, parts: Parts, format: GroupedFormat) -> Groups:
        return unpack.mxfp4(format, self._codes(parts), parts.integers("weight_scale", np.uint8))


class PackedMxfp4(Mxfp4):
    """compressed-tensors: weight_packed, and weight_scale with an exponent for each 32 weights."""

    codes = ("weight_packed",)
    code = "weight_packed"

    def is_here(self, parts: Parts) -> bool:
        return super().is_here(parts) and not parts.has("weight_global_scale")


@dataclass(frozen=True, slots=True)
class _FourBits:
    """A matrix of bitsandbytes: two codes in a byte, the high half first."""

    packed: Bytes
    table: Floats
    """[16]: the value of each code."""
    scales: Floats
    """One for each block of `block` numbers."""
    block: int
    shape: Shape


class BitsAndBytes(Layout):
    """With 4 bits: weight, weight.absmax, weight.quant_map and a state in JSON. With 8 bits: weight
    in int8, SCB [N]."""

    codes = ("SCB", *_STATES)
    others = ("SCB", "weight_format", "weight.absmax", "weight.quant_map", "weight.nested_absmax",
              "weight.nested_quant_map", *_STATES)  # fmt: skip

    def shape(self, parts: Parts) -> Shape:
        state = _state(parts)
        return parts.shape("weight") if state is None else _shape_of(state)

    def numbers(self, parts: Parts) -> Floats:
        if _state(parts) is None:
            codes = parts.integers("weight", np.int8)
            return expand.rows_of_8_bits(codes, parts.floats("SCB"))
        found = _four_bits(parts)
        return expand.blocks_of_4_bits(
            found.packed, found.table, found.scales, found.block, found.shape
        )

    def fits(self, parts: Parts, shipped: Shipped) -> bool:
        state = _state(parts)
        return state is not None and shipped.fits(_shape_of(state)[1])

    def groups(self, parts: Parts, shipped: Shipped) -> Groups:
        found, format = _four_bits(parts), shipped.format
        if not np.array_equal(found.table, LEVELS[format.table]):
            raise CheckpointError(
                f"quant_map must be the table of {format.table}; quantization='int8' or 'int4' "
                "loads other tables, but rounds the numbers again"
            )
        rows, depth = found.shape
        pairs = found.packed.reshape(-1)
        codes = np.stack((pairs >> 4, pairs & 15), axis=-1).reshape(rows, depth)
        first = np.arange(codes.size // format.group) * format.group
        blocks = _blocks_at(first, found, format.group)
        return Groups(format, codes, found.scales.reshape(-1)[blocks].reshape(rows, -1))


def _blocks_at(first: NDArray[np.int64], found: _FourBits, group: int) -> NDArray[np.int64]:
    """Return the block that holds each group, given the group's first number. Raises ValueError."""
    if found.block % group:
        raise ValueError(f"blocksize must be a multiple of {group}, not {found.block}")
    blocks: NDArray[np.int64] = first // found.block
    if found.scales.size != int(blocks[-1]) + 1:
        count = int(blocks[-1]) + 1
        raise ValueError(
            f"there must be {count} scales (blocks of {found.block}), not {found.scales.size}"
        )
    return blocks


def _four_bits(parts: Parts) -> _FourBits:
    """Read a matrix of 4 bits. Raises ValueError for any other matrix."""
    state = _state(parts)
    if state is None:
        raise ValueError("a quant_state of 4 bits is missing")
    packed = parts.integers("weight", np.uint8)
    table = parts.floats("weight.quant_map")
    if table.size != 16 or not np.isfinite(table).all():
        raise ValueError("quant_map must be a table of 16 numbers")
    scales = _scales(parts, state)
    return _FourBits(packed, table, scales, _block_size(state, "blocksize"), _shape_of(state))


def _scales(parts: Parts, state: dict[str, Any]) -> Floats:
    if not parts.has("weight.nested_absmax"):
        return parts.floats("weight.absmax")
    table = parts.floats("weight.nested_quant_map")
    if table.size != 256:
        raise ValueError("nested_quant_map must be a table of 256 numbers")
    nested = expand.NestedScales(
        table,
        parts.floats("weight.nested_absmax"),
        _block_size(state, "nested_blocksize"),
        float(state.get("nested_offset", 0.0)),
    )
    return nested.expand(parts.integers("weight.absmax", np.uint8))


def _state(parts: Parts) -> dict[str, Any] | None:
    """The JSON object that bitsandbytes writes for a 4-bit weight; None: the weight has 8 bits."""
    part = parts.first(*_STATES)
    if part is None:
        return None
    raw = parts.integers(part, np.uint8).reshape(-1)
    if raw.size > _MAX_STATE_BYTES:
        raise ValueError(f"{part} must have at most {_MAX_STATE_BYTES} bytes, not {raw.size}")
    state = json.loads(raw.tobytes())
    if not isinstance(state, dict):
        raise ValueError(f"{part} must be a JSON object")
    return state


def _block_size(state: dict[str, Any], key: str) -> int:
    size = state.get(key)
    if isinstance(size, int) and 0 < size <= _MAX_BLOCK:
        return size
    raise ValueError(f"{key} must be a number from 1 to {_MAX_BLOCK}, not {size!r}")


def _shape_of(state: dict[str, Any]) -> Shape:
    shape = state.get("shape")
    if isinstance(shape, list) and len(shape) == 2 and all(isinstance(n, int) for n in shape):
        return tuple(shape)
    raise ValueError(f"shape must be a list of two numbers, not {shape!r}")
