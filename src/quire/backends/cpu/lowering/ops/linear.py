"""Matrix products with the later ops that their epilogues do, and the head (logits)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import ClassVar

from quire.backends.cpu.lowering.graph import Graph, lower
from quire.backends.cpu.lowering.native_op import Exchanged, NativeOp, StoredWeight
from quire.program import LOGITS, Act, Activation, Glu, Linear, Logits, OpPlace, Scale, Value
from quire.program.values import Vector


@dataclass(frozen=True, slots=True)
class NativeLinear(NativeOp):
    """A matrix product with an epilogue: scale, bias, activation and residual, each optional.

    With a glu weight (gate|up) the only output is activation(gate) * up.
    """

    x: Value
    outs: tuple[Value, ...]
    weight: StoredWeight
    bias: Vector | None
    scale: float = 1.0
    activation: Activation | None = None
    residual: Value | None = None

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.weight.param.name)

    @property
    def label(self) -> str:
        return f"linear {'x'.join(map(str, self.weight.param.shape))}"

    @property
    def adds_to(self) -> Value | None:
        return self.residual if len(self.outs) == 1 else None

    def float32_values(self, wide: Collection[Value]) -> tuple[Value, ...]:  # noqa: ARG002
        return () if self.residual is None else (self.residual,)


@dataclass(frozen=True, slots=True)
class NativeLogits(NativeOp):
    """The head, then sampling. A last op. Rows are handled in slabs, so that the logits of a large
    batch never exist all at once; they are not stored in the workspace."""

    in_float32: ClassVar[bool] = False
    x: Value
    weight: StoredWeight
    bias: Vector | None
    scale: float
    softcap: float | None
    columns: Exchanged | None
    """The columns that the matrix has; None: all."""

    @property
    def exchanges(self) -> bool:
        return self.columns is not None

    @property
    def place(self) -> OpPlace:
        return LOGITS

    @property
    def label(self) -> str:
        return f"logits {'x'.join(map(str, self.weight.param.shape))}"


@lower.register
def _(op: Linear, graph: Graph) -> tuple[NativeOp, ...]:
    linear = NativeLinear(op.x, op.outs, StoredWeight("matrix", op.weight), op.bias)
    if len(op.outs) == 2:
        return (_with_glu(linear, graph),)
    if len(op.outs) == 1:
        return (_with_epilogue(linear, graph),)
    return (linear,)


def _with_glu(linear: NativeLinear, graph: Graph) -> NativeLinear:
    glu = graph.only_reader(linear.outs[0])
    alone = glu is graph.only_reader(linear.outs[1])
    if not (isinstance(glu, Glu) and alone and (glu.gate, glu.up) == linear.outs):
        return linear
    graph.join(glu)
    weight = replace(linear.weight, glu=True)
    return replace(linear, outs=(glu.out,), activation=glu.act, weight=weight)


def _with_epilogue(linear: NativeLinear, graph: Graph) -> NativeLinear:
    """Join an activation, or a scale and a residual."""
    [product] = linear.outs
    reader = graph.only_reader(product)
    if isinstance(reader, Act):
        graph.join(reader)
        return replace(linear, outs=(reader.out,), activation=reader.act)
    if isinstance(reader, Scale) and linear.bias is None:
        graph.join(reader)
        linear = replace(linear, outs=(reader.out,), scale=reader.factor)
    if (found := graph.residual(linear.outs[0], computed_with=product)) is None:
        return linear
    add, other = found
    graph.join(add)
    return replace(linear, outs=(add.out,), residual=other)


@lower.register
def _(op: Logits, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    weight, split = StoredWeight("matrix", op.weight), op.columns
    columns = None if split is None else Exchanged("columns", split.total, split=split)
    return (NativeLogits(op.x, weight, op.bias, op.scale, op.softcap, columns),)
