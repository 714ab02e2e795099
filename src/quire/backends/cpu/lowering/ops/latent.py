"""Latent attention: products of heads, joined heads, and attention over latents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from quire.backends.cpu.lowering.graph import lowers
from quire.backends.cpu.lowering.native_op import Fields, NativeOp, StoredWeight
from quire.program import Attention, HeadLinear, JoinHeads, OpPlace, Value


@dataclass(frozen=True, slots=True)
class NativeHeadLinear(NativeOp):
    """Each head times a matrix of its own."""

    struct: ClassVar[str] = "head_linear"
    in_float32: ClassVar[bool] = False
    op: HeadLinear

    @property
    def weights(self) -> tuple[StoredWeight, ...]:
        return (StoredWeight("matrix", self.op.weight),)

    def fill(self, struct: Any, fields: Fields) -> None:
        fields.view(struct.x, self.op.x)
        fields.view(struct.out, self.op.out)
        struct.matrix = fields.weight(self.weights[0])
        struct.num_heads = self.op.weight.shape[0]


@dataclass(frozen=True, slots=True)
class NativeJoin(NativeOp):
    """Heads made of two parts."""

    struct: ClassVar[str] = "join"
    in_float32: ClassVar[bool] = False
    op: JoinHeads

    def fill(self, struct: Any, fields: Fields) -> None:
        fields.view(struct.a, self.op.a)
        fields.view(struct.b, self.op.b)
        fields.view(struct.out, self.op.out)
        struct.num_heads = self.op.num_heads


@dataclass(frozen=True, slots=True)
class NativeLatent(NativeOp):
    """Writes k to the cache and attends. `taken_only`: as of `NativeAttention`."""

    struct: ClassVar[str] = "latent"
    in_float32: ClassVar[bool] = False
    op: Attention
    k: Value
    layer: int
    value_dim: int
    taken_only: bool

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.op.q, self.k)

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.op.out.name, reads_cache=True)

    def fill(self, struct: Any, fields: Fields) -> None:
        fields.view(struct.q, self.op.q)
        fields.view(struct.k, self.k)
        fields.view(struct.out, self.op.out)
        fields.kv_place(struct.kv, self.layer)
        struct.num_heads = self.op.num_heads
        struct.value_dim = self.value_dim
        struct.scale = self.op.scale
        struct.taken_only = self.taken_only


lowers(HeadLinear, NativeHeadLinear)
lowers(JoinHeads, NativeJoin)
