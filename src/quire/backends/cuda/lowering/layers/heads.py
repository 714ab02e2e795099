"""Ops on each head of a row."""

from __future__ import annotations

from collections.abc import Iterator

from quire.backends.cuda.kernel import TYPE_NAMES, Arguments, Kernel, Launch, both
from quire.backends.cuda.lowering.context import Emit, Lowering
from quire.backends.cuda.lowering.linear import Product
from quire.program import HeadLinear, JoinHeads

_BLOCK = 512


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
        yield from both([join_kernel(dtype)])


def lower_head_linear(op: HeadLinear, lowering: Lowering) -> Emit:
    """A program for each tile of each head."""
    x, y, heads = lowering.rows[op.x], lowering.rows[op.out], op.weight.shape[0]
    if op.weight.format != "dense":
        lowering.refuse(f"product of heads with {op.weight.name} in the format {op.weight.format}")
    product = Product(op.weight, None, lowering, most_rows=lowering.options.max_num_tokens)
    return lambda step: product.emit(x, y, lowering.num_rows(op.x, step), num_heads=heads)


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
