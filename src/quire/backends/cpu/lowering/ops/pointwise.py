"""Elementwise ops that no op before them has joined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from quire.backends.cpu.lowering.graph import Graph, lower
from quire.backends.cpu.lowering.native_op import Fields, NativeOp
from quire.program import Act, Activation, Add, Glu, Scale, Value


@dataclass(frozen=True, slots=True)
class NativePointwise(NativeOp):
    """a + b, activation(a) * b, activation(a) or a * factor."""

    struct: ClassVar[str] = "pointwise"
    kind: Literal["add", "glu", "act", "scale"]
    a: Value
    out: Value
    b: Value | None = None
    activation: Activation | None = None
    factor: float = 1.0

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.a,) if self.b is None else (self.a, self.b)

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.out,)

    def fill(self, struct: Any, fields: Fields) -> None:
        fields.view(struct.a, self.a)
        fields.view(struct.b, self.b)
        fields.view(struct.out, self.out)
        struct.kind = fields.code(f"QUIRE_POINTWISE_{self.kind.upper()}")
        struct.activation = fields.activation(self.activation)
        struct.factor = self.factor


@lower.register
def _(op: Glu, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return (NativePointwise("glu", op.gate, op.out, op.up, op.act),)


@lower.register
def _(op: Act, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return (NativePointwise("act", op.x, op.out, activation=op.act),)


@lower.register
def _(op: Add, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return (NativePointwise("add", op.a, op.out, op.b),)


@lower.register
def _(op: Scale, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return (NativePointwise("scale", op.x, op.out, factor=op.factor),)
