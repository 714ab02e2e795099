"""Latent attention: products of heads, joined heads, and attention over latents."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from quire.backends.cpu.lowering.graph import Graph, lower
from quire.backends.cpu.lowering.native_op import Fields, NativeOp, StoredWeight
from quire.program import Attention, HeadLinear, JoinHeads, OpPlace, Value


@dataclass(frozen=True, slots=True)
class NativeHeadLinear(NativeOp):
    """Each head times a matrix of its own."""

    struct: ClassVar[str] = "head_linear"
    op: HeadLinear

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.op.x,)

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.op.out,)

    @property
    def weights(self) -> tuple[StoredWeight, ...]:
        return (StoredWeight("matrix", self.op.weight),)

    def float32_values(self, wide: Collection[Value]) -> tuple[Value, ...]:  # noqa: ARG002
        return ()

    def fill(self, struct: Any, fields: Fields) -> None:
        fields.view(struct.x, self.op.x)
        fields.view(struct.out, self.op.out)
        struct.matrix = fields.weight(self.weights[0])
        struct.num_heads = self.op.weight.shape[0]


@dataclass(frozen=True, slots=True)
class NativeJoin(NativeOp):
    """Heads made of two parts."""

    struct: ClassVar[str] = "join"
    op: JoinHeads

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.op.a, self.op.b)

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.op.out,)

    def float32_values(self, wide: Collection[Value]) -> tuple[Value, ...]:  # noqa: ARG002
        return ()

    def fill(self, struct: Any, fields: Fields) -> None:
        fields.view(struct.a, self.op.a)
        fields.view(struct.b, self.op.b)
        fields.view(struct.out, self.op.out)
        struct.num_heads = self.op.num_heads


@dataclass(frozen=True, slots=True)
class NativeLatent(NativeOp):
    """Writes k to the cache and attends. `taken_only`: as of `NativeAttention`."""

    struct: ClassVar[str] = "latent"
    op: Attention
    k: Value
    layer: int
    value_dim: int
    taken_only: bool

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.op.q, self.k)

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.op.out,)

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.op.out.name, reads_cache=True)

    def float32_values(self, wide: Collection[Value]) -> tuple[Value, ...]:  # noqa: ARG002
        return ()

    def fill(self, struct: Any, fields: Fields) -> None:
        fields.view(struct.q, self.op.q)
        fields.view(struct.k, self.k)
        fields.view(struct.out, self.op.out)
        fields.kv_place(struct.kv, self.layer)
        struct.num_heads = self.op.num_heads
        struct.value_dim = self.value_dim
        struct.scale = self.op.scale
        struct.taken_only = self.taken_only


@lower.register
def _(op: HeadLinear, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return (NativeHeadLinear(op),)


@lower.register
def _(op: JoinHeads, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001
    return (NativeJoin(op),)
