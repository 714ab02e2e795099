"""Exchanges with other ranks: values of which each rank has a part, and values between stages; and
rows that the caller of a step gives or gets."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from quire.backends.cpu.lowering.graph import Graph, lower, lowers
from quire.backends.cpu.lowering.native_op import ExchangeKind, Fields, Home, NativeOp
from quire.backends.cpu.lowering.ops.pointwise import NativePointwise
from quire.program import (
    Columns,
    Gather,
    Linear,
    OpPlace,
    Receive,
    RowsIn,
    RowsOut,
    Send,
    Split,
    Value,
)


@dataclass(frozen=True, slots=True)
class NativeGather(NativeOp):
    """Completes `out`, of which this rank has written `part` in its place."""

    struct: ClassVar[str] = "exchange"
    in_float32: ClassVar[bool] = False
    part: Value
    out: Value
    split: Split
    by: Literal["columns", "owner"]

    @property
    def homes(self) -> dict[Value, Home]:
        return {self.part: Home(self.out, self.split.own[0] if self.by == "columns" else 0)}

    @property
    def exchanges(self) -> bool:
        return True

    def fill(self, struct: Any, fields: Fields) -> None:
        fields.view(struct.value, self.out)
        struct.kind = fields.code("QUIRE_EXCHANGE_RANKS")
        struct.number = fields.exchange(self.by, self.split, self.out)


@dataclass(frozen=True, slots=True)
class NativePass(NativeOp):
    """Takes a value from the stage before, or hands one to the next; or from and to the caller."""

    struct: ClassVar[str] = "exchange"
    kind: ExchangeKind
    value: Value

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.value,) if self.kind in ("send", "rows_out") else ()

    @property
    def writes(self) -> tuple[Value, ...]:
        return () if self.reads else (self.value,)

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.value.name)

    def float32_values(self, wide: Collection[Value]) -> tuple[Value, ...]:  # noqa: ARG002
        # Both stages store a value alike. Other ops decide how one for the caller is stored.
        return (self.value,) if self.kind in ("send", "receive") else ()

    def fill(self, struct: Any, fields: Fields) -> None:
        fields.view(struct.value, self.value)
        struct.kind = fields.code("QUIRE_EXCHANGE_STAGES")
        struct.number = fields.exchange(self.kind, None, self.value)


@dataclass(frozen=True, slots=True)
class NativeCopy(NativePointwise):
    """Copies one of the values that a product has written to the place where it is exchanged."""

    @property
    def copied(self) -> Value | None:
        return self.a

    def float32_values(self, wide: Collection[Value]) -> tuple[Value, ...]:
        return (self.a,) if self.out in wide else ()


@lower.register
def _(op: Gather, graph: Graph) -> tuple[NativeOp, ...]:
    writer = graph.writer(op.x)
    if not (isinstance(writer, Linear) and len(writer.outs) > 1):
        return (NativeGather(op.x, op.out, op.split, op.by),)
    placed = Value(f"{op.x.name}.placed", op.x.dim)
    return (NativeCopy("scale", op.x, placed), NativeGather(placed, op.out, op.split, op.by))


@lower.register
def _(op: Columns, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return ()  # `fuse` notes that the columns lie in the whole value


@lower.register
def _(op: Receive, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return tuple(NativePass("receive", value) for value in op.outs)


@lower.register
def _(op: RowsIn, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return tuple(NativePass("rows_in", value) for value in op.outs)


lowers(RowsOut, lambda op: NativePass("rows_out", op.x))


@lower.register
def _(op: Send, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return tuple(NativePass("send", value) for value in op.values)
