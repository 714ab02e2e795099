"""HQQ and torchao, which are always expanded.

Sources: HQQ `core/quantize.py`, `core/bitpack.py`; torchao `prototype/safetensors`,
`quantize_/workflows/int4/int4_tensor.py`.
"""

from __future__ import annotations

import numpy as np

from quire.weights.quantised import expand, unpack
from quire.weights.quantised.groups import Bytes, Floats
from quire.weights.quantised.layout import Layout, Parts, Shape

_META = (
    "scale", "zero", "nbits", "group_size", "shape", "axis", "packing", "unpack_view_dtype",
    "view_as_float", "quant_scale", "quant_zero", "compute_dtype", "channel_wise", "optimize",
    "round_zero", "offload_meta", "stores_quant_config", "encoded_state_dict",
)  # fmt: skip


class Hqq(Layout):
    """W_q with codes packed along the first axis, the first part in the highest bits; scale and
    zero of each group of the reshaped matrix; shape [2]."""

    codes = ("W_q",)
    others = ("W_q", *_META)

    def shape(self, parts: Parts) -> Shape:
        if not parts.has("shape"):
            raise ValueError("tensor 'shape', the size of the matrix, is missing")
        shape = tuple(int(n) for n in parts.integers("shape", np.int64).reshape(-1))
        if len(shape) != 2 or min(shape) < 1:
            raise ValueError(f"shape must be two positive numbers, not {list(shape)}")
        return shape

    def numbers(self, parts: Parts) -> Floats:
        if not parts.has("scale") or not parts.has("zero"):
            raise ValueError("scale or zero is missing or quantised itself, which is not supported")
        shape, bits = self.shape(parts), self._number(parts, "nbits", parts.how.bits)
        group = self._number(parts, "group_size", parts.how.group or 0) or shape[1]
        axis = self._number(parts, "axis", parts.how.axis)
        size = int(np.prod(shape))
        if bits not in (1, 2, 3, 4, 8) or axis not in (0, 1) or size % group:
            raise ValueError(f"nbits {bits}, axis {axis} and group_size {group} do not fit {shape}")
        rows = size // group if axis == 1 else group
        packed = parts.integers("W_q", np.int32 if bits == 3 else np.uint8)
        codes = unpack.stacked_fields(packed, bits)[:rows]
        scales, zeros = parts.floats("scale"), parts.floats("zero")
        values: Floats = (codes.astype(np.float32) - zeros) * scales
        return values.reshape(shape)

    def _number(self, parts: Parts, part: str, default: int) -> int:
        if not parts.has(part):
            return default
        found = next((d for d in (np.int64, np.int32, np.uint8) if parts.holds(part, d)), np.int64)
        return int(parts.integers(part, found).reshape(-1)[0])


class TorchAo(Layout):
    """_weight_qdata, _weight_scale and perhaps _weight_zero_point of an Int4Tensor (plain packing),
    an int8 tensor, or a Float8Tensor."""

    codes = ("_weight_qdata",)
    others = ("_weight_qdata", "_weight_scale", "_weight_zero_point")

    def shape(self, parts: Parts) -> Shape:
        rows, columns = parts.matrix("_weight_qdata")
        return rows, columns * (2 if parts.how.bits == 4 else 1)

    def numbers(self, parts: Parts) -> Floats:
        if parts.has("_weight_act_pre_scale"):
            raise ValueError("act_pre_scale changes the activations, which is not supported")
        if parts.how.is_float:
            codes = parts.integers("_weight_qdata", np.uint8)
            return expand.fp8(codes, parts.floats("_weight_scale"), parts.how.block)
        return self._int4(parts) if parts.how.bits == 4 else self._int8(parts)

    def _int4(self, parts: Parts) -> Floats:
        """Return signed codes times their scales plus their zeros; scales and zeros are
        [K / group, N]."""
        is_signed = parts.holds("_weight_qdata", np.int8)
        packed = parts.integers("_weight_qdata", np.int8 if is_signed else np.uint8)
        codes: Bytes = unpack.pairs(packed.view(np.uint8)) ^ np.uint8(8)
        scales, zeros = parts.floats("_weight_scale").T, parts.floats("_weight_zero_point").T
        numbers = codes.astype(np.float32) - np.float32(8)
        depth = codes.shape[1]
        scaled: Floats = numbers * expand.of_columns(scales, depth)
        return scaled + expand.of_columns(zeros, depth)

    def _int8(self, parts: Parts) -> Floats:
        codes = parts.integers("_weight_qdata", np.int8)
        rows, depth = codes.shape
        scales = parts.floats("_weight_scale").reshape(rows, -1)
        numbers = codes.astype(np.float32)
        if parts.has("_weight_zero_point"):
            zeros = parts.integers("_weight_zero_point", np.int8).reshape(rows, -1)
            numbers -= expand.of_columns(zeros.astype(np.float32), depth)
        found: Floats = numbers * expand.of_columns(scales, depth)
        return found
