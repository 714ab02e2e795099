"""Mixture of experts: the chosen experts' MLPs, with scale and residual."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from quire.backends.cpu.lowering.graph import Graph, lower
from quire.backends.cpu.lowering.native_op import Exchanged, NativeOp, StoredWeight
from quire.program import Activation, Experts, OpPlace, Scale, Value
from quire.program.values import Vector


@dataclass(frozen=True, slots=True)
class NativeExperts(NativeOp):
    """out = sum over the experts e whose weight w = routes[row, e] is not 0, in the order of e, of
    w * down_e(activation(gate_e(x)) * up_e(x)); times scale, plus residual. With `weighs_inputs`
    gate_e and up_e read w * x, in x's type, and the sum has no weights."""

    x: Value
    routes: Value
    """[rows, E], with at most `top_k` numbers other than 0 in a row."""
    out: Value
    gate_up: StoredWeight
    """E matrices [2 I, D], or [I, D] without gates."""
    down: StoredWeight
    """E matrices [D, I]."""
    gate_up_bias: Vector | None
    down_bias: Vector | None
    activation: Activation
    top_k: int
    weighs_inputs: bool
    inner: Exchanged | None
    """The columns that gate_up has of each expert's I; None: all."""
    scale: float = 1.0
    residual: Value | None = None

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.gate_up.param.name)

    @property
    def label(self) -> str:
        return f"experts {'x'.join(map(str, self.gate_up.param.shape))}"

    @property
    def exchanges(self) -> bool:
        return self.inner is not None

    @property
    def adds_to(self) -> Value | None:
        return self.residual

    def float32_values(self, wide: Collection[Value]) -> tuple[Value, ...]:  # noqa: ARG002
        """All values except x, which only products read."""
        return (*self.reads[1:], self.out)


@lower.register
def _(op: Experts, graph: Graph) -> tuple[NativeOp, ...]:
    inner = None if op.inner is None else Exchanged("columns", op.inner.total, op.x, op.inner)
    gate_up = StoredWeight("matrix", op.gate_up, glu=op.gated)
    experts = NativeExperts(
        op.x, op.routes, op.out, gate_up, StoredWeight("matrix", op.down), op.gate_up_bias,
        op.down_bias, op.act, op.top_k, op.weighs_inputs, inner,
    )  # fmt: skip
    reader = graph.only_reader(op.out)
    if isinstance(reader, Scale):
        graph.join(reader)
        experts = replace(experts, out=reader.out, scale=reader.factor)
    if (found := graph.residual(experts.out, computed_with=op.out)) is None:
        return (experts,)
    add, other = found
    graph.join(add)
    return (replace(experts, out=add.out, residual=other),)
