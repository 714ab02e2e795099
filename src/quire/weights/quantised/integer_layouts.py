"""AWQ, GPTQ, and the integer formats of compressed-tensors.

Sources: AutoAWQ `awq/utils/packing_utils.py`; GPTQModel `nn_modules/qlinear/torch.py`;
compressed-tensors `compressors/pack_quantized`, `compressors/naive_quantized`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.weights.quantised import expand, unpack
from quire.weights.quantised.groups import Floats, Groups
from quire.weights.quantised.layout import Layout, Parts, Shape

if TYPE_CHECKING:
    from quire.models.quantised import Shipped


class Awq(Layout):
    """qweight [K, N / 8], qzeros [groups, N / 8], scales [groups, N]."""

    codes = ("qweight",)
    others = ("qzeros", "scales", "g_idx")

    def shape(self, parts: Parts) -> Shape:
        depth, words = parts.matrix("qweight")
        return 8 * words, depth

    def numbers(self, parts: Parts) -> Floats:
        return expand.awq(*self._tensors(parts))

    def fits(self, parts: Parts, shipped: Shipped) -> bool:
        depth, _ = parts.matrix("qweight")
        return shipped.has_groups(parts.matrix("scales")[0], depth)

    def groups(self, parts: Parts, shipped: Shipped) -> Groups:
        return unpack.awq(shipped.format, *self._tensors(parts))

    def _tensors(self, parts: Parts) -> tuple[NDArray[np.int32], NDArray[np.int32], Floats]:
        return (
            parts.integers("qweight", np.int32),
            parts.integers("qzeros", np.int32),
            parts.floats("scales"),
        )


class Gptq(Layout):
    """qweight [K bits / 32, N], qzeros [groups, N bits / 32], scales [groups, N], g_idx [K].

    The number of bits is derived from the tensors, because `dynamic` rules change it for some
    modules.
    """

    codes = ("qweight",)
    others = ("qzeros", "scales", "g_idx")

    def shape(self, parts: Parts) -> Shape:
        words, rows = parts.matrix("qweight")
        return rows, words * 32 // _gptq_bits(parts)

    def numbers(self, parts: Parts) -> Floats:
        rows, depth = self.shape(parts)
        bits = _gptq_bits(parts)
        scales = parts.floats("scales")
        return expand.gptq(
            unpack.fields(parts.integers("qweight", np.int32), bits, 0)[:depth],
            unpack.fields(parts.integers("qzeros", np.int32), bits, 1)[:, :rows],
            scales,
            _order(parts, "g_idx", len(scales), depth),
            parts.how.zero_offset,
        )

    def fits(self, parts: Parts, shipped: Shipped) -> bool:
        bits, format = _gptq_bits(parts), shipped.format
        depth = self.shape(parts)[1]
        num_groups = parts.matrix("scales")[0]
        if bits != format.code_bits or not shipped.has_groups(num_groups, depth):
            return False
        if not format.has_zeros and not self._is_symmetric(parts, bits, shipped.zero_offset):
            return False
        order = _order(parts, "g_idx", num_groups, depth)
        return unpack.has_whole_groups(order, num_groups, in_order=not format.has_order)

    def groups(self, parts: Parts, shipped: Shipped) -> Groups:
        scales = parts.floats("scales")
        bits = _gptq_bits(parts)
        codes = unpack.fields(parts.integers("qweight", np.int32), bits, 0).T
        zeros = None
        if shipped.format.has_zeros:
            stored = unpack.fields(parts.integers("qzeros", np.int32), bits, 1).T
            zeros = (stored + np.uint8(shipped.zero_offset)).astype(np.uint8)
        order = _order(parts, "g_idx", len(scales), codes.shape[1])
        return unpack.grouped(shipped.format, codes, scales.T, zeros, order)

    def _is_symmetric(self, parts: Parts, bits: int, offset: int) -> bool:
        """Whether every zero point is the middle of the codes' range."""
        rows = parts.matrix("scales")[1]
        zeros = unpack.fields(parts.integers("qzeros", np.int32), bits, 1)[:, :rows]
        return bool((zeros == (1 << (bits - 1)) - offset).all())


class PackQuantized(Layout):
    """weight_packed [N, K bits / 32], codes to which half of their range was added; weight_scale
    [N, groups], weight_zero_point [N bits / 32, groups], weight_g_idx [K]."""

    codes = ("weight_packed",)
    others = (
        "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx", "input_scale",
        "input_zero_point",
    )  # fmt: skip

    def is_here(self, parts: Parts) -> bool:
        return parts.holds("weight_packed", np.int32)

    def shape(self, parts: Parts) -> Shape:
        rows, words = parts.matrix("weight_packed")
        if parts.has("weight_shape"):
            shape = parts.integers("weight_shape", np.int64).reshape(-1)
            if shape.size != 2 or shape[0] != rows or not 0 < shape[1] <= words * 32:
                raise ValueError(f"weight_shape is {shape.tolist()}, but there are {rows} rows")
            return rows, int(shape[1])
        return rows, words * 32 // parts.how.bits

    def numbers(self, parts: Parts) -> Floats:
        rows, depth = self.shape(parts)
        bits = self._bits(parts, depth)
        scales = parts.floats("weight_scale")
        return expand.pack_quantized(
            unpack.fields(parts.integers("weight_packed", np.int32), bits, 1)[:, :depth],
            scales,
            self._zeros(parts, bits, rows),
            _order(parts, "weight_g_idx", scales.shape[1], depth),
            bits,
        )

    def fits(self, parts: Parts, shipped: Shipped) -> bool:
        format = shipped.format
        depth = self.shape(parts)[1]
        num_groups = parts.matrix("weight_scale")[1]
        if self._bits(parts, depth) != format.code_bits or depth % (32 // format.code_bits):
            return False
        if parts.has("weight_zero_point") != format.has_zeros:
            return False
        order = _order(parts, "weight_g_idx", num_groups, depth)
        return shipped.has_groups(num_groups, depth) and unpack.has_whole_groups(
            order, num_groups, in_order=not format.has_order
        )

    def groups(self, parts: Parts, shipped: Shipped) -> Groups:
        bits, scales = shipped.format.code_bits, parts.floats("weight_scale")
        codes = unpack.fields(parts.integers("weight_packed", np.int32), bits, 1)
        zeros = self._zeros(parts, bits, len(codes))
        order = _order(parts, "weight_g_idx", scales.shape[1], codes.shape[1])
        return unpack.grouped(shipped.format, codes, scales, zeros, order)

    def _bits(self, parts: Parts, depth: int) -> int:
        words = parts.matrix("weight_packed")[1]
        for bits in (4, 8):
            if words == -(-depth * bits // 32):
                return bits
        raise ValueError("weight_packed must hold codes of 4 or 8 bits")

    def _zeros(self, parts: Parts, bits: int, rows: int) -> NDArray[np.uint8] | None:
        if not parts.has("weight_zero_point"):
            return None
        return unpack.fields(parts.integers("weight_zero_point", np.int32), bits, 0)[:rows]


class IntQuantized(Layout):
    """weight [N, K] of int8, weight_scale [N, groups]."""

    codes = ("weight_scale",)
    others = ("weight_scale", "weight_zero_point", "input_scale", "input_zero_point")

    def is_here(self, parts: Parts) -> bool:
        return parts.holds("weight", np.int8)

    def shape(self, parts: Parts) -> Shape:
        return parts.shape("weight")

    def numbers(self, parts: Parts) -> Floats:
        self._refuse_zeros(parts)
        codes = parts.integers("weight", np.int8)
        return expand.int_quantized(codes, self._scales(parts))

    def fits(self, parts: Parts, shipped: Shipped) -> bool:
        shape = parts.matrix("weight")
        if shipped.format.table != "s8" or not self.is_here(parts):
            return False
        return shipped.has_groups(self._scales(parts).shape[1], shape[1])

    def groups(self, parts: Parts, shipped: Shipped) -> Groups:
        self._refuse_zeros(parts)
        codes, scales = parts.integers("weight", np.int8), self._scales(parts)
        spread = np.repeat(scales, len(codes), axis=0) if len(scales) == 1 else scales
        return unpack.grouped(shipped.format, codes.view(np.uint8) ^ np.uint8(128), spread)

    def _scales(self, parts: Parts) -> Floats:
        """Return scales [N, groups], or [1, 1] if the whole matrix has one scale."""
        scales = parts.floats("weight_scale")
        return scales if scales.ndim == 2 else scales.reshape(-1, 1)

    def _refuse_zeros(self, parts: Parts) -> None:
        if parts.has("weight_zero_point") and parts.integers("weight_zero_point", np.int8).any():
            raise ValueError("weight_zero_point must be zero for weights of 8 bits")


def _gptq_bits(parts: Parts) -> int:
    """Derive the number of bits from the width of qzeros. If a matrix has few rows, several widths
    match, and the length of g_idx decides."""
    rows = parts.matrix("scales")[1]
    words, groups = parts.matrix("qweight")[0], parts.matrix("qzeros")
    found = [bits for bits in (2, 3, 4, 8) if groups[1] == -(-rows * bits // 32)]
    if parts.has("g_idx"):
        depth = parts.shape("g_idx")[0]
        found = [bits for bits in found if words == -(-depth * bits // 32)]
    if len(found) != 1:
        raise ValueError("qweight, qzeros and g_idx must agree on 2, 3, 4 or 8 bits per code")
    return found[0]


def _order(parts: Parts, part: str, num_groups: int, depth: int) -> NDArray[np.int32]:
    """Return the group of each column. If every stored number is -1, columns are in order."""
    if parts.has(part):
        order = parts.integers(part, np.int32).reshape(-1)
        if order.size != depth:
            raise ValueError(f"{part} must have {depth} numbers, one per column, not {order.size}")
        if not (order == -1).all():
            return order
    size = -(-depth // max(num_groups, 1))
    return (np.arange(depth) // size).astype(np.int32)
