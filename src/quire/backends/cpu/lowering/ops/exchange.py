"""Exchanges with other ranks: values of which each rank has a part, and values between stages; and
rows that the caller of a step gives or gets."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from quire.backends.cpu.lowering.graph import Graph, lower, lowers
from quire.backends.cpu.lowering.native_op import Exchanged, ExchangeKind, Home, NativeOp
from quire.backends.cpu.lowering.ops.kernels import NativeCopy
from quire.program import (
    Columns,
    Gather,
    Linear,
    OpPlace,
    Receive,
    RowsIn,
    RowsOut,
    Scale,
    Send,
    Value,
)


@dataclass(frozen=True, slots=True)
class NativeGather(NativeOp):
    """Completes `out`, of which this rank has written `part` in its place."""

    in_float32: ClassVar[bool] = False
    part: Value
    out: Value
    rows: Exchanged

    @property
    def homes(self) -> dict[Value, Home]:
        return {self.part: Home(self.out, self.rows.first)}

    @property
    def exchanges(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class NativePass(NativeOp):
    """Takes a value from the stage before, or hands one to the next; or from and to the caller."""

    value: Value
    rows: Exchanged

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.value,) if self.rows.kind in ("send", "rows_out") else ()

    @property
    def writes(self) -> tuple[Value, ...]:
        return () if self.reads else (self.value,)

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.value.name)

    def float32_values(self, wide: Collection[Value]) -> tuple[Value, ...]:  # noqa: ARG002
        # Both stages store a value alike. Other ops decide how one for the caller is stored.
        return (self.value,) if self.rows.kind in ("send", "receive") else ()


def _pass(kind: ExchangeKind, value: Value) -> NativePass:
    return NativePass(value, Exchanged(kind, value.dim, value))


@lower.register
def _(op: Gather, graph: Graph) -> tuple[NativeOp, ...]:
    writer = graph.writer(op.x)
    rows = Exchanged(op.by, op.out.dim, op.out, op.split)
    if not (isinstance(writer, Linear) and len(writer.outs) > 1):
        return (NativeGather(op.x, op.out, rows),)
    # One of the values that a product has written goes to the place where it is exchanged.
    placed = Value(f"{op.x.name}.placed", op.x.dim)
    return (NativeCopy(Scale(op.x, placed, 1.0), op.x), NativeGather(placed, op.out, rows))


@lower.register
def _(op: Columns, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return ()  # `fuse` notes that the columns lie in the whole value


@lower.register
def _(op: Receive, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return tuple(_pass("receive", value) for value in op.outs)


@lower.register
def _(op: RowsIn, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return tuple(_pass("rows_in", value) for value in op.outs)


lowers(RowsOut, lambda op: _pass("rows_out", op.x))


@lower.register
def _(op: Send, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return tuple(_pass("send", value) for value in op.values)
