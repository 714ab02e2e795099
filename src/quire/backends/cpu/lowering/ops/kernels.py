"""Ops of a program that are native ops as they are."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from quire.backends.cpu.lowering.graph import Graph, lower
from quire.backends.cpu.lowering.native_op import NativeOp, StoredWeight
from quire.errors import BackendError
from quire.program import CausalConv, MeanRows, OpPlace, TakeRows, Value, place_of
from quire.program.ops import KernelOp
from quire.program.printer import snake_case


@dataclass(frozen=True, slots=True)
class NativeKernel(NativeOp):
    """A native op whose struct has the fields of an op of the program."""

    op: KernelOp

    @property
    def struct(self) -> str:
        return snake_case(type(self.op).__name__)

    @property
    def record(self) -> KernelOp:
        return self.op

    @property
    def takes_rows(self) -> bool:
        return self.op.takes_rows

    @property
    def place(self) -> OpPlace:
        if hasattr(self.op, "outs"):  # they have no name together, but their weight has one
            return place_of(self.op)
        return OpPlace.named(self.writes[0].name, reads_cache=bool(self.op.memories()))

    @property
    def weights(self) -> tuple[StoredWeight, ...]:
        matrices = [param for param in self.op.params() if len(param.shape) > 1]
        return tuple(StoredWeight("matrix", param) for param in matrices)

    def float32_values(self, wide: Collection[Value]) -> tuple[Value, ...]:  # noqa: ARG002
        return self.reads if self.op.reads_float32 else ()


@dataclass(frozen=True, slots=True)
class NativeCopy(NativeKernel):
    """Numbers that do not change: they are float32 where the copy has to be."""

    source: Value | None = None
    """The value of which the copy has all rows."""

    @property
    def copied(self) -> Value | None:
        return self.source

    def float32_values(self, wide: Collection[Value]) -> tuple[Value, ...]:
        return self.reads if any(value in wide for value in self.writes) else ()


@dataclass(frozen=True, slots=True)
class NativeMean(NativeKernel):
    """Means are also written in float32."""

    def float32_values(self, wide: Collection[Value]) -> tuple[Value, ...]:  # noqa: ARG002
        return (*self.reads, *self.writes)


@lower.register
def _(op: KernelOp, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return (NativeKernel(op),)


@lower.register
def _(op: TakeRows, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return (NativeCopy(op),)


@lower.register
def _(op: MeanRows, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return (NativeMean(op),)


@lower.register
def _(op: CausalConv, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    if op.act not in (None, "silu"):
        raise BackendError(f"{place_of(op)}: the CPU backend has convolutions with silu alone")
    return (NativeKernel(op),)
