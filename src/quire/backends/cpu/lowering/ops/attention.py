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
from quire.program import ActivationBits, Attention, OpPlace, Param, TakeRows, Value, place_of


@dataclass(frozen=True, slots=True)
class NativeAttention(NativeOp):
    """Attention of q over the cache, which already holds k and v of this step.

    `taken_only`: later ops read only the rows of `out` for which logits are computed.
    """

    struct: ClassVar[str] = "attention"
    in_float32: ClassVar[bool] = False
    q: Value
    out: Value
    layer: int | None
    """None: K and V of the step alone, see `CpuModel`."""
    num_heads: int
    scale: float
    window: int | None
    softcap: float | None
    alibi_slopes: tuple[float, ...] | None
    activation_bits: ActivationBits
    taken_only: bool
    sinks: Param | None = None
    is_chunked: bool = False
    is_causal: bool = True
    relative: Param | None = None
    buckets: tuple[int, ...] = ()
    spans: bool = False

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.out.name, reads_cache=True)

    def fill(self, struct: Any, fields: Fields) -> None:
        fields.view(struct.q, self.q)
        fields.view(struct.out, self.out)
        fields.kv_place(struct.kv, self.layer)
        struct.num_heads = self.num_heads
        struct.scale = self.scale
        struct.softcap = self.softcap or 0.0
        struct.window = self.window or 0
        struct.is_chunked = self.is_chunked
        struct.is_bidirectional = not self.is_causal
        if self.spans:
            struct.spans = True
        struct.relative = -1
        if self.relative is not None:
            struct.relative = fields.gathered(self.relative, self._relative_places())
        struct.activation_bits = self.activation_bits
        struct.taken_only = self.taken_only
        slopes = self.alibi_slopes
        struct.sinks = fields.vector(self.sinks)
        struct.alibi = -1 if slopes is None else fields.constant(np.array(slopes, np.float32))

    def _relative_places(self) -> NDArray[np.intp]:
        """Where each head's bias for each distance lies among the weights [buckets, N]."""
        buckets, heads = np.array(self.buckets, np.intp), np.arange(self.num_heads)
        return (buckets * self.num_heads + heads[:, None]).reshape(-1)


@lower.register
def _(op: Attention, graph: Graph) -> tuple[NativeOp, ...]:
    taken_only = all(isinstance(reader, TakeRows) for reader in graph.readers(op.out))
    is_plain = op.softcap is None and op.alibi_slopes is None and op.sinks is None
    if op.is_latent and is_plain and op.k and op.layer is not None and op.value_dim:
        return (NativeLatent(op, op.k, op.layer, op.value_dim, taken_only),)
    if op.value_dim not in (None, op.head_dim):
        raise BackendError(f"{place_of(op)}: the CPU backend needs keys and values of one width")
    attention = NativeAttention(
        op.q, op.out, op.layer, op.num_heads, op.scale, op.window, op.softcap, op.alibi_slopes,
        op.activation_bits,
        taken_only=taken_only,
        sinks=op.sinks,
        is_chunked=op.is_chunked,
        is_causal=op.is_causal,
        relative=op.relative,
        buckets=op.buckets,
        spans=op.spans,
    )  # fmt: skip
    return *heads_of(op, graph), attention
