"""Normalisations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quire.backends.cuda.kernel import TYPE_NAMES, Arguments, Kernel, Launch, both
from quire.backends.cuda.lowering.context import Emit, Lowering
from quire.program import HeadNorm, LayerNorm, Param, RmsNorm, Value

_BLOCKS = (128, 1024)
"""Numbers of a tile: for heads, and for whole rows."""


def norm_kernel(dtype: str, block: int, *, is_centred: bool) -> Kernel:
    """A norm of numbers of one type."""
    types = (
        ("x", f"*{dtype}"), ("weight", "*fp32"), ("bias", "*fp32"), ("out", f"*{dtype}"),
        ("width", "i32"), ("eps", "fp32"), ("offset", "fp32"), ("stride_x", "i32"),
        ("stride_out", "i32"), ("weight_step", "i32"), ("has_weight", "i32"), ("has_bias", "i32"),
    )  # fmt: skip
    constants = (("BLOCK", block), ("CENTRED", int(is_centred)))
    return Kernel("norm", "norm", types, constants)


def variants() -> Iterator[Kernel]:
    """All kernels that this module launches."""
    for dtype in TYPE_NAMES.values():
        for block in _BLOCKS:
            for is_centred in (False, True):
                yield from both([norm_kernel(dtype, block, is_centred=is_centred)])


@dataclass(frozen=True, slots=True)
class _Norm:
    """Operands and numbers that the three ops have."""

    x: Value
    out: Value
    weight: Param | None
    bias: Param | None
    eps: float
    offset: float
    num_heads: int
    is_centred: bool


def lower_rms_norm(op: RmsNorm, lowering: Lowering) -> Emit:
    """A row is one head."""
    return _lower(
        _Norm(op.x, op.out, op.weight, None, op.eps, op.weight_offset, 1, False), lowering
    )


def lower_layer_norm(op: LayerNorm, lowering: Lowering) -> Emit:
    """A row is one head."""
    norm = _Norm(op.x, op.out, op.weight, op.bias, op.eps, op.weight_offset, 1, True)
    return _lower(norm, lowering)


def lower_head_norm(op: HeadNorm, lowering: Lowering) -> Emit:
    """The heads share one weight, or have one each."""
    is_centred = op.kind == "layer"
    heads = op.num_heads
    norm = _Norm(op.x, op.out, op.weight, None, op.eps, op.weight_offset, heads, is_centred)
    return _lower(norm, lowering)


def _lower(norm: _Norm, lowering: Lowering) -> Emit:
    x, out = lowering.rows[norm.x], lowering.rows[norm.out]
    width = norm.x.dim // norm.num_heads
    has_own = norm.weight is not None and norm.weight.num_elements > width
    block = _BLOCKS[0] if width <= _BLOCKS[0] else _BLOCKS[1]
    kernel = norm_kernel(x.type_name, block, is_centred=norm.is_centred)
    args: Arguments = {
        "x": x.buffer, "weight": lowering.vector(norm.weight), "bias": lowering.vector(norm.bias),
        "out": out.buffer, "width": width, "eps": norm.eps, "offset": norm.offset,
        "stride_x": x.stride, "stride_out": out.stride, "weight_step": width if has_own else 0,
        "has_weight": int(norm.weight is not None), "has_bias": int(norm.bias is not None),
    }  # fmt: skip
    kernel = kernel.fitted(args)
    return lambda step: [Launch(kernel, (lowering.num_rows(norm.x, step), norm.num_heads), args)]
