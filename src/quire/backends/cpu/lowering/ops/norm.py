"""Norms of whole rows, with the residual that some models add after the norm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from quire.backends.cpu.lowering.graph import Graph, lower
from quire.backends.cpu.lowering.native_op import Fields, NativeOp
from quire.program import LayerNorm, NormKind, OpPlace, Param, RmsNorm, Value


@dataclass(frozen=True, slots=True)
class NativeNorm(NativeOp):
    """Norm of whole rows, plus `residual` if it is not None."""

    struct: ClassVar[str] = "norm"
    x: Value
    out: Value
    kind: NormKind
    weight: Param | None
    bias: Param | None
    eps: float
    weight_offset: float = 0.0
    residual: Value | None = None

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.out.name if self.weight is None else self.weight.name)

    def fill(self, struct: Any, fields: Fields) -> None:
        fields.view(struct.x, self.x)
        fields.view(struct.out, self.out)
        fields.view(struct.residual, self.residual)
        struct.kind = fields.code(f"QUIRE_NORM_{self.kind.upper()}")
        struct.weight = fields.vector(self.weight, plus=self.weight_offset)
        struct.bias = fields.vector(self.bias)
        struct.eps = self.eps


@lower.register
def _(op: RmsNorm, graph: Graph) -> tuple[NativeOp, ...]:
    norm = NativeNorm(op.x, op.out, "rms", op.weight, None, op.eps, op.weight_offset)
    return (_with_residual(norm, graph),)


@lower.register
def _(op: LayerNorm, graph: Graph) -> tuple[NativeOp, ...]:
    norm = NativeNorm(op.x, op.out, "layer", op.weight, op.bias, op.eps, op.weight_offset)
    return (_with_residual(norm, graph),)


def _with_residual(norm: NativeNorm, graph: Graph) -> NativeNorm:
    if (found := graph.residual(norm.out, computed_with=norm.out)) is None:
        return norm
    add, other = found
    graph.join(add)
    return replace(norm, out=add.out, residual=other)
