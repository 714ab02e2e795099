"""Ops that compute each number from those at the same place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from quire.backends.cuda.kernel import TYPE_NAMES, Action, Arguments, Kernel, Launch, both
from quire.backends.cuda.lowering.context import Emit, Lowering, Rows
from quire.backends.cuda.memory import Buffer
from quire.backends.cuda.step import Step
from quire.program import (
    Act,
    Activation,
    Add,
    Clamp,
    Columns,
    Glu,
    PositionScale,
    RowScale,
    Scale,
    SigmoidGate,
    SoftCap,
    Value,
    Weigh,
)

ACTIVATIONS: tuple[Activation, ...] = (
    "identity", "silu", "gelu", "gelu_tanh", "relu", "relu2", "gelu_quick", "tanh", "swiglu_oai"
)  # fmt: skip
"""In the order of the kernel's numbers."""
OPS = ("add", "scale", "clamp", "multiply", "gate", "softcap", "positions", "copy")
"""In the order of the kernel's numbers."""
_BLOCK = 512


def act_kernel(dtype: str, act: Activation) -> Kernel:
    """An activation of numbers of one type."""
    types = (
        ("x", f"*{dtype}"), ("out", f"*{dtype}"), ("width", "i32"), ("stride_x", "i32"),
        ("stride_out", "i32"),
    )  # fmt: skip
    return Kernel("pointwise", "act", types, (("ACT", ACTIVATIONS.index(act)), ("BLOCK", _BLOCK)))


def glu_kernel(dtype: str, act: Activation) -> Kernel:
    """A gated activation of numbers of one type."""
    types = (
        ("gate", f"*{dtype}"), ("up", f"*{dtype}"), ("out", f"*{dtype}"), ("width", "i32"),
        ("stride_gate", "i32"), ("stride_up", "i32"), ("stride_out", "i32"),
    )  # fmt: skip
    return Kernel("pointwise", "glu", types, (("ACT", ACTIVATIONS.index(act)), ("BLOCK", _BLOCK)))


def combine_kernel(dtype: str, second: str, op: str) -> Kernel:
    """One of OPS, for x and out of one type and y of another."""
    types = (
        ("x", f"*{dtype}"), ("y", f"*{second}"), ("out", f"*{dtype}"), ("positions", "*i32"),
        ("width", "i32"), ("a", "fp32"), ("stride_x", "i32"), ("stride_y", "i32"),
        ("step_y", "i32"), ("stride_out", "i32"), ("shift", "i32"), ("period", "i32"),
    )  # fmt: skip
    return Kernel("pointwise", "combine", types, (("OP", OPS.index(op)), ("BLOCK", _BLOCK)))


def variants() -> Iterator[Kernel]:
    """All kernels that this module launches."""
    for dtype in TYPE_NAMES.values():
        for act in get_args(Activation):
            if act != "swiglu_oai":
                yield from both([act_kernel(dtype, act)])
            yield from both([glu_kernel(dtype, act)])
        for op in OPS:
            yield from both([combine_kernel(dtype, dtype, op)])
        yield from both([combine_kernel(dtype, "fp32", "multiply")])


def lower_act(op: Act, lowering: Lowering) -> Emit:
    """An activation."""
    x, out = lowering.rows[op.x], lowering.rows[op.out]
    args: Arguments = {
        "x": x.buffer, "out": out.buffer, "width": out.width, "stride_x": x.stride,
        "stride_out": out.stride,
    }  # fmt: skip
    return _rows(act_kernel(x.type_name, op.act), args, op.x, lowering)


def lower_glu(op: Glu, lowering: Lowering) -> Emit:
    """A gated activation."""
    gate, up, out = (lowering.rows[value] for value in (op.gate, op.up, op.out))
    args: Arguments = {
        "gate": gate.buffer, "up": up.buffer, "out": out.buffer, "width": out.width,
        "stride_gate": gate.stride, "stride_up": up.stride, "stride_out": out.stride,
    }  # fmt: skip
    return _rows(glu_kernel(gate.type_name, op.act), args, op.gate, lowering)


def lower_add(op: Add, lowering: Lowering) -> Emit:
    """A sum."""
    return _combine("add", op.a, op.out, lowering, second=lowering.rows[op.b])


def lower_scale(op: Scale, lowering: Lowering) -> Emit:
    """A product with a number."""
    return _combine("scale", op.x, op.out, lowering, a=op.factor)


def lower_clamp(op: Clamp, lowering: Lowering) -> Emit:
    """Limits on both sides."""
    return _combine("clamp", op.x, op.out, lowering, a=op.limit)


def lower_soft_cap(op: SoftCap, lowering: Lowering) -> Emit:
    """A soft limit."""
    return _combine("softcap", op.x, op.out, lowering, a=op.cap)


def lower_sigmoid_gate(op: SigmoidGate, lowering: Lowering) -> Emit:
    """A gate for each number, or one for a row."""
    return _combine("gate", op.x, op.out, lowering, second=lowering.rows[op.gate])


def lower_row_scale(op: RowScale, lowering: Lowering) -> Emit:
    """A factor for each row."""
    return _combine("multiply", op.x, op.out, lowering, second=lowering.rows[op.factor])


def lower_weigh(op: Weigh, lowering: Lowering) -> Emit:
    """A weight for each column, or one for all."""
    weight = Rows(lowering.weight(op.weight), 0, op.weight.num_elements, "fp32")
    return _combine("multiply", op.x, op.out, lowering, second=weight)


def lower_position_scale(op: PositionScale, lowering: Lowering) -> Emit:
    """A factor that follows from the position."""
    return _combine(
        "positions", op.x, op.out, lowering, a=op.beta, shift=op.shift, period=op.period
    )


def lower_columns(op: Columns, lowering: Lowering) -> Emit:
    """Some columns, copied."""
    return _combine("copy", op.x, op.out, lowering, first=op.first)


def combine_args(
    x: Rows, out: Rows, positions: Buffer, second: Rows | None = None, **numbers: float
) -> Arguments:
    """The arguments of `combine`. x and out may be the same."""
    y = second or x
    scalars: dict[str, float] = {"a": 0.0, "shift": 0, "period": 1, **numbers}
    return {
        "x": x.buffer, "y": y.buffer, "out": out.buffer, "positions": positions,
        "width": out.width, "stride_x": x.stride, "stride_y": y.stride,
        "step_y": int(y.width > 1 or out.width == 1), "stride_out": out.stride, **scalars,
    }  # fmt: skip


def _combine(
    name: str,
    x: Value,
    out: Value,
    lowering: Lowering,
    *,
    second: Rows | None = None,
    first: int = 0,
    **numbers: float,
) -> Emit:
    source, target = lowering.rows[x].columns(first, out.dim), lowering.rows[out]
    y = second or source
    kernel = combine_kernel(source.type_name, y.type_name, name)

    def emit(step: Step) -> list[Action]:
        args = combine_args(source, target, step.buffers["positions"], second, **numbers)
        grid = (lowering.num_rows(x, step), -(-target.width // _BLOCK))
        return [Launch(kernel.fitted(args), grid, args)]

    return emit


def _rows(kernel: Kernel, args: Arguments, x: Value, lowering: Lowering) -> Emit:
    """A launch over the rows of x and the columns of the result."""
    fitted, columns = kernel.fitted(args), -(-int(args["width"]) // _BLOCK)  # type: ignore[arg-type]
    return lambda step: [Launch(fitted, (lowering.num_rows(x, step), columns), args)]
