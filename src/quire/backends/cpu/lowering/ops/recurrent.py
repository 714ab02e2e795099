"""Recurrent layers: convolutions and linear recurrences, each with a state of every request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from quire.backends.cpu.lowering.graph import Graph, lower, lowers
from quire.backends.cpu.lowering.native_op import Fields, NativeOp
from quire.errors import BackendError
from quire.program import CausalConv, GatedDelta, Mamba, OpPlace, Ssd, Value, place_of


@dataclass(frozen=True, slots=True)
class NativeConv(NativeOp):
    """A causal convolution; its results lie side by side."""

    struct: ClassVar[str] = "conv"
    in_float32: ClassVar[bool] = False
    op: CausalConv

    @property
    def buffers(self) -> tuple[tuple[Value, ...], ...]:
        return (self.op.outs,)

    @property
    def place(self) -> OpPlace:
        return place_of(self.op)

    def fill(self, struct: Any, fields: Fields) -> None:
        op = self.op
        fields.view(struct.x, op.x)
        fields.view(struct.out, op.outs[0], op.x.dim)
        fields.state(struct.state, op.layer)
        struct.weight = fields.vector(op.weight)
        struct.bias = fields.vector(op.bias)
        struct.width = op.width
        struct.activation = fields.activation(op.act)


@dataclass(frozen=True, slots=True)
class NativeRecurrence(NativeOp):
    """Base of the recurrences. They read all values in float32."""

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.writes[0].name, reads_cache=True)

    def fill(self, struct: Any, fields: Fields) -> None:
        """Fills the views, the weights and the numbers that have the names of the op's fields."""
        op = self.op  # type: ignore[attr-defined]
        for name in self.values:  # type: ignore[attr-defined]
            fields.view(getattr(struct, name), getattr(op, name))
        for name in self.vectors:  # type: ignore[attr-defined]
            setattr(struct, name, fields.vector(getattr(op, name)))
        for name in self.numbers:  # type: ignore[attr-defined]
            setattr(struct, name, getattr(op, name))
        fields.state(struct.state, op.layer)


@dataclass(frozen=True, slots=True)
class NativeDelta(NativeRecurrence):
    """The gated delta rule."""

    struct: ClassVar[str] = "delta"
    values: ClassVar[tuple[str, ...]] = ("q", "k", "v", "a", "b", "out")
    vectors: ClassVar[tuple[str, ...]] = ("a_log", "dt_bias")
    numbers: ClassVar[tuple[str, ...]] = ("num_heads", "num_key_heads", "is_tiled")
    op: GatedDelta


@dataclass(frozen=True, slots=True)
class NativeSsd(NativeRecurrence):
    """Mamba 2's recurrence."""

    struct: ClassVar[str] = "ssd"
    values: ClassVar[tuple[str, ...]] = ("x", "dt", "b", "c", "out")
    vectors: ClassVar[tuple[str, ...]] = ("a_log", "dt_bias", "d")
    numbers: ClassVar[tuple[str, ...]] = ("num_heads", "num_groups", "dt_min", "dt_max")
    op: Ssd


@dataclass(frozen=True, slots=True)
class NativeMamba(NativeRecurrence):
    """Mamba 1's recurrence."""

    struct: ClassVar[str] = "mamba"
    values: ClassVar[tuple[str, ...]] = ("x", "dt", "b", "c", "out")
    vectors: ClassVar[tuple[str, ...]] = ("a_log", "dt_bias", "d")
    numbers: ClassVar[tuple[str, ...]] = ()
    op: Mamba


@lower.register
def _(op: CausalConv, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    if op.act not in (None, "silu"):
        raise BackendError(f"{place_of(op)}: the CPU backend has convolutions with silu alone")
    return (NativeConv(op),)


lowers(GatedDelta, NativeDelta)
lowers(Ssd, NativeSsd)
lowers(Mamba, NativeMamba)
