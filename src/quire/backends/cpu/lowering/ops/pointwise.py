"""Elementwise ops that no earlier native op has joined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from quire.backends.cpu.lowering.graph import lowers
from quire.backends.cpu.lowering.native_op import Fields, NativeOp
from quire.program import (
    Act,
    Activation,
    Add,
    Between,
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
    "row_scale", "softcap", "outliers", "match_rms", "between",
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
    """The two weights of xIELU, the bounds of "between", or the factor of each column of `a` for
    "weigh"."""

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


lowers(Glu, lambda op: NativePointwise("glu", op.gate, op.out, op.up, op.act))
lowers(Act, lambda op: NativePointwise("act", op.x, op.out, activation=op.act))
lowers(Add, lambda op: NativePointwise("add", op.a, op.out, op.b))
lowers(Scale, lambda op: NativePointwise("scale", op.x, op.out, factor=op.factor))
lowers(Clamp, lambda op: NativePointwise("clamp", op.x, op.out, factor=op.limit))
lowers(Between, lambda op: NativePointwise("between", op.x, op.out, alphas=(op.low, op.high)))


lowers(
    PositionScale,
    lambda op: NativePointwise(
        "position_scale", op.x, op.out, factor=op.beta, period=op.period, shift=op.shift
    ),
)
lowers(
    Xielu,
    lambda op: NativePointwise(
        "xielu", op.x, op.out, factor=op.beta, eps=op.eps, alphas=(op.positive, op.negative)
    ),
)
lowers(SigmoidGate, lambda op: NativePointwise("gate", op.x, op.out, op.gate))
lowers(Weigh, lambda op: NativePointwise("weigh", op.x, op.out, alphas=(op.weight,)))
lowers(RowScale, lambda op: NativePointwise("row_scale", op.x, op.out, op.factor))
lowers(SoftCap, lambda op: NativePointwise("softcap", op.x, op.out, factor=op.cap))
lowers(Outliers, lambda op: NativePointwise("outliers", op.x, op.out, factor=op.deviations))
lowers(MatchRms, lambda op: NativePointwise("match_rms", op.x, op.out, op.like, eps=op.eps))
