"""Attention over the paged cache or latents, preceded by a heads op that writes k and v."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quire.backends.cpu.lowering.graph import Graph, lower
from quire.backends.cpu.lowering.native_op import KVLayer, NativeOp, Numbers, Picked
from quire.backends.cpu.lowering.ops.heads import heads_of
from quire.errors import BackendError
from quire.program import ActivationBits, Attention, OpPlace, TakeRows, Value, place_of


@dataclass(frozen=True, slots=True)
class NativeAttention(NativeOp):
    """Attention of q over the cache, which already holds k and v of this step."""

    in_float32: ClassVar[bool] = False
    q: Value
    out: Value
    kv: KVLayer
    num_heads: int
    scale: float
    softcap: float | None
    window: int | None
    is_chunked: bool
    """A position sees the part of its window that is in its own chunk."""
    is_bidirectional: bool
    """A position also sees later ones, a window's mirrored."""
    spans: bool
    """A position also sees its span; with `is_bidirectional`, its span alone."""
    alibi: Numbers | None
    """Slopes [num_heads]."""
    relative: Numbers | None
    """[num_heads * (2 reach + 1)]: a bias for each distance of the key from the query, -reach to
    reach, further ones as these."""
    sinks: Numbers | None
    """[num_heads]: one more score per head, without a value."""
    activation_bits: ActivationBits
    """8: q and the weights may be rounded to bytes over an int8 cache."""
    taken_only: bool
    """Later ops read only the rows of `out` for which logits are computed."""
    first_key: int
    """The first position that a token may see."""
    num_keys: int
    """A token sees no position from it on; 0: no such limit."""

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.out.name, reads_cache=True)


def _relative(op: Attention) -> Numbers | None:
    """Each head's bias for each distance, from the weights [buckets, N]."""
    if op.relative is None:
        return None
    heads = range(op.num_heads)
    places = [bucket * op.num_heads + head for head in heads for bucket in op.buckets]
    return Picked(op.relative, tuple(places))


@lower.register
def _(op: Attention, graph: Graph) -> tuple[NativeOp, ...]:
    taken_only = all(isinstance(reader, TakeRows) for reader in graph.readers(op.out))
    is_plain = op.softcap is None and op.alibi_slopes is None and op.sinks is None
    if op.is_latent and is_plain and op.k and op.layer is not None and op.value_dim:
        sizes = (op.num_heads, op.value_dim, op.scale)
        return (NativeLatent(op.q, op.k, op.out, op.layer, *sizes, taken_only),)
    if op.value_dim not in (None, op.head_dim):
        raise BackendError(f"{place_of(op)}: the CPU backend needs keys and values of one width")
    attention = NativeAttention(
        op.q, op.out, op.layer, op.num_heads, op.scale, op.softcap, op.window, op.is_chunked,
        not op.is_causal, op.spans, op.alibi_slopes, _relative(op), op.sinks, op.activation_bits,
        taken_only, op.first_key, op.num_keys,
    )  # fmt: skip
    return *heads_of(op, graph), attention


@dataclass(frozen=True, slots=True)
class NativeLatent(NativeOp):
    """Writes k to the cache, then attends. All heads of q read one head of k, whose first
    `value_dim` numbers are the values too: q is [T, num_heads * k.dim], out is
    [T, num_heads * value_dim]. A slot holds [block_size][dim] numbers, rounded up as a head of K
    is. `taken_only`: as of `NativeAttention`."""

    in_float32: ClassVar[bool] = False
    q: Value
    k: Value
    out: Value
    kv: KVLayer
    num_heads: int
    value_dim: int
    scale: float
    taken_only: bool

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.out.name, reads_cache=True)
