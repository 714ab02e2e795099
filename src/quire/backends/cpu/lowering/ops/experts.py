"""Mixture of experts: the router's choice, and the experts' MLPs with scale and residual."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from quire.backends.cpu.lowering.graph import Graph, lower, lowers
from quire.backends.cpu.lowering.native_op import Fields, NativeOp, StoredWeight
from quire.program import Experts, OpPlace, Route, Scale, Value


@dataclass(frozen=True, slots=True)
class NativeRoute(NativeOp):
    """Computes the weights of experts from a router's logits, both in float32."""

    struct: ClassVar[str] = "route"
    op: Route

    def fill(self, struct: Any, fields: Fields) -> None:
        op = self.op
        fields.view(struct.logits, op.logits)
        fields.view(struct.out, op.out)
        struct.bias = fields.vector(op.bias)
        struct.score = fields.code(f"QUIRE_ROUTE_{op.score.upper()}")
        groups = ("num_groups", "top_groups", "group_best")
        for name in ("top_k", "jitter", *groups, "normalise", "floor", "scale"):
            setattr(struct, name, getattr(op, name))


@dataclass(frozen=True, slots=True)
class NativeExperts(NativeOp):
    """The weighted sum of the chosen experts' MLPs, times `scale`, plus `residual`."""

    struct: ClassVar[str] = "experts"
    op: Experts
    out: Value
    scale: float = 1.0
    residual: Value | None = None

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.op.gate_up.name)

    @property
    def label(self) -> str:
        return f"experts {'x'.join(map(str, self.op.gate_up.shape))}"

    @property
    def weights(self) -> tuple[StoredWeight, ...]:
        gate_up = StoredWeight("matrix", self.op.gate_up, glu=self.op.gated)
        return (gate_up, StoredWeight("matrix", self.op.down))

    @property
    def exchanges(self) -> bool:
        return self.op.inner is not None

    @property
    def adds_to(self) -> Value | None:
        return self.residual

    def float32_values(self, wide: Collection[Value]) -> tuple[Value, ...]:  # noqa: ARG002
        """All values except x, which only products read."""
        return (*self.reads[1:], self.out)

    def fill(self, struct: Any, fields: Fields) -> None:
        op = self.op
        fields.view(struct.x, op.x)
        fields.view(struct.routes, op.routes)
        fields.view(struct.out, self.out)
        fields.view(struct.residual, self.residual)
        gate_up, down = self.weights
        struct.gate_up = fields.weight(gate_up)
        struct.down = fields.weight(down)
        struct.gate_up_bias = fields.vector(op.gate_up_bias)
        struct.down_bias = fields.vector(op.down_bias)
        struct.activation = fields.activation(op.act)
        struct.top_k = op.top_k
        struct.weighs_inputs = op.weighs_inputs
        struct.scale = self.scale
        struct.inner_first = 0 if op.inner is None else op.inner.own[0]
        struct.exchange = fields.exchange("columns", op.inner, fields.dtype(op.x))


lowers(Route, NativeRoute)


@lower.register
def _(op: Experts, graph: Graph) -> tuple[NativeOp, ...]:
    experts = NativeExperts(op, op.out)
    reader = graph.only_reader(op.out)
    if isinstance(reader, Scale):
        graph.join(reader)
        experts = replace(experts, out=reader.out, scale=reader.factor)
    if (found := graph.residual(experts.out, computed_with=op.out)) is None:
        return (experts,)
    add, other = found
    graph.join(add)
    return (replace(experts, out=add.out, residual=other),)
