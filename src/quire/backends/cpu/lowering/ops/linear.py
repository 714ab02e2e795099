"""Matrix products with the later ops that their epilogues do, and the head (logits)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from quire.backends.cpu.lowering.graph import Graph, lower, lowers
from quire.backends.cpu.lowering.native_op import Fields, NativeOp, StoredWeight
from quire.program import (
    LOGITS,
    Act,
    Activation,
    Glu,
    Linear,
    Logits,
    OpPlace,
    Param,
    Scale,
    Split,
    Value,
)


@dataclass(frozen=True, slots=True)
class NativeLinear(NativeOp):
    """A matrix product with an epilogue: scale, bias, activation and residual, each optional.

    `glu`: the weight is gate|up and the only output is activation(gate) * up.
    """

    struct: ClassVar[str] = "linear"
    x: Value
    outs: tuple[Value, ...]
    weight: Param
    bias: Param | None
    scale: float = 1.0
    activation: Activation | None = None
    glu: bool = False
    residual: Value | None = None

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.weight.name)

    @property
    def label(self) -> str:
        return f"linear {'x'.join(map(str, self.weight.shape))}"

    @property
    def weights(self) -> tuple[StoredWeight, ...]:
        return (StoredWeight("matrix", self.weight, self.glu),)

    @property
    def buffers(self) -> tuple[tuple[Value, ...], ...]:
        return (self.outs,)

    @property
    def adds_to(self) -> Value | None:
        return self.residual if len(self.outs) == 1 else None

    def float32_values(self, wide: Collection[Value]) -> tuple[Value, ...]:  # noqa: ARG002
        return () if self.residual is None else (self.residual,)

    def fill(self, struct: Any, fields: Fields) -> None:
        fields.view(struct.x, self.x)
        fields.view(struct.out, self.outs[0], sum(out.dim for out in self.outs))
        fields.view(struct.residual, self.residual)
        struct.matrix = fields.weight(self.weights[0])
        struct.bias = fields.vector(self.bias)
        struct.activation = fields.activation(self.activation)
        struct.scale = self.scale


@dataclass(frozen=True, slots=True)
class NativeLogits(NativeOp):
    """The head and sampling; the logits are not stored in the workspace."""

    struct: ClassVar[str] = "logits"
    in_float32: ClassVar[bool] = False
    x: Value
    weight: Param
    bias: Param | None
    scale: float
    softcap: float | None
    columns: Split | None = None

    @property
    def exchanges(self) -> bool:
        return self.columns is not None

    @property
    def place(self) -> OpPlace:
        return LOGITS

    @property
    def label(self) -> str:
        return f"logits {'x'.join(map(str, self.weight.shape))}"

    @property
    def weights(self) -> tuple[StoredWeight, ...]:
        return (StoredWeight("matrix", self.weight),)

    def fill(self, struct: Any, fields: Fields) -> None:
        fields.view(struct.x, self.x)
        struct.matrix = fields.weight(self.weights[0])
        struct.bias = fields.vector(self.bias)
        struct.scale = self.scale
        struct.softcap = self.softcap or 0.0
        struct.first = 0 if self.columns is None else self.columns.own[0]
        struct.exchange = fields.exchange("columns", self.columns, "float32")


@lower.register
def _(op: Linear, graph: Graph) -> tuple[NativeOp, ...]:
    linear = NativeLinear(op.x, op.outs, op.weight, op.bias)
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
    return replace(linear, outs=(glu.out,), activation=glu.act, glu=True)


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


lowers(Logits, lambda op: NativeLogits(op.x, op.weight, op.bias, op.scale, op.softcap, op.columns))
