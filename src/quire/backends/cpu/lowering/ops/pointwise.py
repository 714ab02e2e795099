"""Elementwise ops that no earlier native op has joined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from quire.backends.cpu.lowering.graph import Graph, lower
from quire.backends.cpu.lowering.native_op import Fields, NativeOp
from quire.program import (
    Act,
    Activation,
    Add,
    Clamp,
    Glu,
    MatchRms,
    Outliers,
    Param,
    PositionScale,
    RowScale,
    Scale,
    SigmoidGate,
    SoftCap,
    Value,
    Weigh,
    Xielu,
)

Kind = Literal[
    "add", "glu", "act", "scale", "clamp", "position_scale", "xielu", "gate", "weigh",
    "row_scale", "softcap", "outliers", "match_rms",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class NativePointwise(NativeOp):
    """An elementwise function of `a`, or of `a` and `b`, chosen by `kind`. Some kinds also depend
    on statistics of the row or on its position."""

    struct: ClassVar[str] = "pointwise"
    kind: Kind
    a: Value
    out: Value
    b: Value | None = None
    activation: Activation | None = None
    factor: float = 1.0
    period: int = 1
    shift: int = 0
    eps: float = 0.0
    alphas: tuple[Param, ...] = ()
    """The two weights of xIELU, or the factor of each column of `a` for "weigh"."""

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
        struct.period = self.period
        struct.shift = self.shift
        struct.eps = self.eps
        for place, alpha in enumerate(self.alphas):
            struct.alphas[place] = fields.vector(alpha)


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


@lower.register
def _(op: Clamp, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return (NativePointwise("clamp", op.x, op.out, factor=op.limit),)


@lower.register
def _(op: PositionScale, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return (
        NativePointwise(
            "position_scale", op.x, op.out, factor=op.beta, period=op.period, shift=op.shift
        ),
    )


@lower.register
def _(op: Xielu, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    alphas = (op.positive, op.negative)
    return (NativePointwise("xielu", op.x, op.out, factor=op.beta, eps=op.eps, alphas=alphas),)


@lower.register
def _(op: SigmoidGate, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return (NativePointwise("gate", op.x, op.out, op.gate),)


@lower.register
def _(op: Weigh, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return (NativePointwise("weigh", op.x, op.out, alphas=(op.weight,)),)


@lower.register
def _(op: RowScale, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return (NativePointwise("row_scale", op.x, op.out, op.factor),)


@lower.register
def _(op: SoftCap, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return (NativePointwise("softcap", op.x, op.out, factor=op.cap),)


@lower.register
def _(op: Outliers, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return (NativePointwise("outliers", op.x, op.out, factor=op.deviations),)


@lower.register
def _(op: MatchRms, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return (NativePointwise("match_rms", op.x, op.out, op.like, eps=op.eps),)
