"""Ops on each head of a row."""

from __future__ import annotations

from collections.abc import Iterator

from quire.backends.cuda.kernel import TYPE_NAMES, Arguments, Kernel, Launch, both
from quire.backends.cuda.lowering.context import Emit, Lowering
from quire.backends.cuda.lowering.linear import (
    BLOCK_M,
    BLOCK_N,
    TILES,
    tile_constants,
)
from quire.backends.cuda.step import Step
from quire.program import HeadLinear, JoinHeads

_BLOCK = 512


def head_product_kernel(dtype: str, *, is_even: bool) -> Kernel:
    """A product for each head, of numbers of one type."""
    block_k, stages = TILES[dtype]
    types = (
        ("x", f"*{dtype}"), ("w", f"*{dtype}"), ("y", f"*{dtype}"), ("num_rows", "i32"),
        ("N", "i32"), ("K", "i32"), ("stride_x", "i32"), ("stride_y", "i32"),
    )  # fmt: skip
    return Kernel(
        "heads", "head_product", types, tile_constants(block_k, is_even=is_even),
        is_aligned=is_even, num_warps=4 if is_even and dtype == "bf16" else 8, num_stages=stages,
    )  # fmt: skip


def join_kernel(dtype: str) -> Kernel:
    """The join of values of one type."""
    integers = ("width_a", "width_b", "width", "stride_a", "stride_b", "stride_out")
    types = (
        ("a", f"*{dtype}"), ("b", f"*{dtype}"), ("out", f"*{dtype}"),
        *((name, "i32") for name in integers),
    )  # fmt: skip
    return Kernel("heads", "join", types, (("BLOCK", _BLOCK),))


def variants() -> Iterator[Kernel]:
    """All kernels that this module launches."""
    for dtype in TYPE_NAMES.values():
        for is_even in (False, True):
            yield head_product_kernel(dtype, is_even=is_even)
        yield from both([join_kernel(dtype)])


def lower_head_linear(op: HeadLinear, lowering: Lowering) -> Emit:
    """A program for each tile of each head."""
    heads, num_out, depth = op.weight.shape
    x, y = lowering.rows[op.x], lowering.rows[op.out]
    args: Arguments = {
        "x": x.buffer, "w": lowering.weight(op.weight), "y": y.buffer, "N": num_out, "K": depth,
        "stride_x": x.stride, "stride_y": y.stride,
    }  # fmt: skip
    kernel = head_product_kernel(x.type_name, is_even=True)
    if depth % TILES[x.type_name][0] or not kernel.fitted({**args, "num_rows": 0}).is_aligned:
        kernel = head_product_kernel(x.type_name, is_even=False)

    def emit(step: Step) -> list[Launch]:
        num_rows = lowering.num_rows(op.x, step)
        grid = (-(-num_rows // BLOCK_M), -(-num_out // BLOCK_N), heads)
        return [Launch(kernel, grid, {**args, "num_rows": num_rows})]

    return emit


def lower_join_heads(op: JoinHeads, lowering: Lowering) -> Emit:
    """A program for some columns of a row."""
    a, b, out = (lowering.rows[value] for value in (op.a, op.b, op.out))
    args: Arguments = {
        "a": a.buffer, "b": b.buffer, "out": out.buffer, "width_a": op.a.dim // op.num_heads,
        "width_b": op.b.dim // op.num_heads, "width": out.width, "stride_a": a.stride,
        "stride_b": b.stride, "stride_out": out.stride,
    }  # fmt: skip
    kernel, columns = join_kernel(out.type_name).fitted(args), -(-out.width // _BLOCK)
    return lambda step: [Launch(kernel, (lowering.num_rows(op.a, step), columns), args)]
