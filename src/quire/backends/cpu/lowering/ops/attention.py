"""Attention over the paged cache, preceded by a heads op that writes k and v to the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from quire.backends.cpu.lowering.graph import Graph, lower
from quire.backends.cpu.lowering.native_op import Fields, NativeOp
from quire.backends.cpu.lowering.ops.heads import heads_of
from quire.backends.cpu.lowering.ops.latent import NativeLatent
from quire.errors import BackendError
from quire.program import Attention, OpPlace, TakeRows, Value, place_of


@dataclass(frozen=True, slots=True)
class NativeAttention(NativeOp):
    """Attention of q over the cache, which already holds k and v of this step.

    `taken_only`: later ops read only the rows of `out` for which logits are computed.
    """

    struct: ClassVar[str] = "attention"
    in_float32: ClassVar[bool] = False
    op: Attention
    taken_only: bool

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.op.q,)

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.op.out.name, reads_cache=True)

    def fill(self, struct: Any, fields: Fields) -> None:
        op = self.op
        fields.view(struct.q, op.q)
        fields.view(struct.out, op.out)
        fields.kv_place(struct.kv, op.layer)  # None: K and V of the step alone, see `CpuModel`
        struct.num_heads = op.num_heads
        struct.scale = op.scale
        struct.softcap = op.softcap or 0.0
        struct.window = op.window or 0
        struct.is_chunked = op.is_chunked
        struct.is_bidirectional = not op.is_causal
        if op.spans:
            struct.spans = True
        struct.relative = -1
        if op.relative is not None:
            struct.relative = fields.gathered(op.relative, self._relative_places())
        struct.activation_bits = op.activation_bits
        struct.taken_only = self.taken_only
        slopes = op.alibi_slopes
        struct.sinks = fields.vector(op.sinks)
        struct.alibi = -1 if slopes is None else fields.constant(np.array(slopes, np.float32))

    def _relative_places(self) -> NDArray[np.intp]:
        """Index of each head's bias for each distance among the weights [buckets, N]."""
        buckets, heads = np.array(self.op.buckets, np.intp), np.arange(self.op.num_heads)
        return (buckets * self.op.num_heads + heads[:, None]).reshape(-1)


@lower.register
def _(op: Attention, graph: Graph) -> tuple[NativeOp, ...]:
    taken_only = all(isinstance(reader, TakeRows) for reader in graph.readers(op.out))
    is_plain = op.softcap is None and op.alibi_slopes is None and op.sinks is None
    if op.is_latent and is_plain and op.k and op.layer is not None and op.value_dim:
        return (NativeLatent(op, op.k, op.layer, op.value_dim, taken_only),)
    if op.value_dim not in (None, op.head_dim):
        raise BackendError(f"{place_of(op)}: the CPU backend needs keys and values of one width")
    return *heads_of(op, graph), NativeAttention(op, taken_only)
