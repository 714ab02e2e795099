"""Norms of whole rows, with the residual that some models add after the norm."""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire.backends.cpu.lowering.graph import Graph, lower
from quire.backends.cpu.lowering.native_op import NativeOp, Shifted
from quire.program import LayerNorm, NormKind, OpPlace, RmsNorm, Value
from quire.program.values import Vector


@dataclass(frozen=True, slots=True)
class NativeNorm(NativeOp):
    """out = norm(x) * weight + bias + residual, over whole rows."""

    x: Value
    out: Value
    kind: NormKind
    weight: Shifted | None
    bias: Vector | None
    eps: float
    residual: Value | None = None

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.out.name if self.weight is None else self.weight.param.name)


@lower.register
def _(op: RmsNorm, graph: Graph) -> tuple[NativeOp, ...]:
    return (_norm(op, "rms", None, graph),)


@lower.register
def _(op: LayerNorm, graph: Graph) -> tuple[NativeOp, ...]:
    return (_norm(op, "layer", op.bias, graph),)


def _norm(op: RmsNorm | LayerNorm, kind: NormKind, bias: Vector | None, graph: Graph) -> NativeNorm:
    weight = None if op.weight is None else Shifted(op.weight, op.weight_offset)
    return _with_residual(NativeNorm(op.x, op.out, kind, weight, bias, op.eps), graph)


def _with_residual(norm: NativeNorm, graph: Graph) -> NativeNorm:
    if (found := graph.residual(norm.out, computed_with=norm.out)) is None:
        return norm
    add, other = found
    graph.join(add)
    return replace(norm, out=add.out, residual=other)
