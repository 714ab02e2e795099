"""Ops on heads between a projection and attention: norm, rotation, and writes to the cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from quire.backends.cpu.lowering.graph import Graph, lower
from quire.backends.cpu.lowering.native_op import KVLayer, NativeOp, NativePart, Numbers, Shifted
from quire.program import (
    Attention,
    HeadNorm,
    KeepSources,
    NormKind,
    Rope,
    Rotary,
    SourcesEnd,
    Value,
)

HeadsTarget = Literal["view", "keys", "values"]


@dataclass(frozen=True, slots=True)
class HeadsPart(NativePart):
    """Heads of one value: normed and rotated (both optional), and written to `out` or the cache."""

    x: Value
    num_heads: int
    target: HeadsTarget
    out: Value | None = None
    norm: Numbers | None = None
    """[head_dim], or [num_heads * head_dim]."""
    norm_kind: NormKind = "rms"
    eps: float = 0.0
    rotation: Rotary | None = None
    norm_after: bool = False
    """Whether the norm comes after the rotation."""


@dataclass(frozen=True, slots=True)
class NativeHeads(NativeOp):
    """One to three parts: q, k and v of an attention op, or a single value."""

    in_float32: ClassVar[bool] = False
    parts: tuple[HeadsPart, ...]
    head_dim: int
    kv: KVLayer = None
    """The layer to whose cache k and v are written."""

    @property
    def reads(self) -> tuple[Value, ...]:
        return tuple(part.x for part in self.parts)

    @property
    def writes(self) -> tuple[Value, ...]:
        return tuple(part.out for part in self.parts if part.out is not None)


def heads_of(op: Attention, graph: Graph) -> tuple[NativeHeads, ...]:
    """Return the heads op that prepares q, k and v for an attention op, if one is needed. Joins the
    norms and rotations before the attention op."""
    parts = []
    # A q without norm and rotation is read in place.
    if (part := _part(op.q, op.num_heads, "view", graph)).x != op.q:
        parts.append(replace(part, out=op.q))
    if op.k is None or op.v is None:
        return (NativeHeads(tuple(parts), op.head_dim),) if parts else ()
    parts.append(_part(op.k, op.num_kv_heads, "keys", graph))
    parts.append(_part(op.v, op.num_kv_heads, "values", graph))
    return (NativeHeads(tuple(parts), op.head_dim, op.layer),)


@lower.register
def _(op: KeepSources, graph: Graph) -> tuple[NativeOp, ...]:
    parts = (
        _part(op.k, op.num_kv_heads, "keys", graph),
        _part(op.v, op.num_kv_heads, "values", graph),
    )
    return (NativeHeads(parts, op.head_dim, op.layer),)


@lower.register
def _(op: SourcesEnd, _: Graph) -> tuple[NativeOp, ...]:
    """The model runs the ops before it for other rows than those after it."""
    del op
    return ()


def _part(value: Value, num_heads: int, target: HeadsTarget, graph: Graph) -> HeadsPart:
    chain = _chain(value, graph)
    part = HeadsPart(chain[0].x if chain else value, num_heads, target)
    for op in chain:
        part = _with(part, op)
    return part


def _chain(value: Value, graph: Graph) -> tuple[HeadNorm | Rope, ...]:
    """Return the HeadNorm and the Rope (each optional) that produce an attention's `value`, in
    order of execution."""
    chain: list[HeadNorm | Rope] = []
    while len(chain) < 2:
        producer = graph.writer(value)
        if not isinstance(producer, HeadNorm | Rope) or graph.only_reader(value) is None:
            break
        if chain and isinstance(producer, type(chain[0])):
            break
        chain.insert(0, producer)
        value = producer.x
    return tuple(chain)


def _with(part: HeadsPart, op: HeadNorm | Rope) -> HeadsPart:
    if isinstance(op, HeadNorm):
        ones = (1.0,) * op.head_dim
        weight = ones if op.weight is None else Shifted(op.weight, op.weight_offset)
        after = part.rotation is not None
        return replace(part, norm=weight, norm_kind=op.kind, eps=op.eps, norm_after=after)
    return replace(part, rotation=Rotary(op.inv_freq, op.scale, op.interleaved, op.axes))


@lower.register(HeadNorm)
@lower.register(Rope)
def _(op: HeadNorm | Rope, graph: Graph) -> tuple[NativeOp, ...]:
    if _leads_to_attention(op, graph):
        return ()
    part = HeadsPart(op.x, op.num_heads, "view", op.out)
    return (NativeHeads((_with(part, op),), op.head_dim),)


def _leads_to_attention(op: HeadNorm | Rope, graph: Graph) -> bool:
    """Whether the heads op of an attention does this op's work."""
    reader = graph.only_reader(op.out)
    if isinstance(reader, HeadNorm | Rope):
        reader = graph.only_reader(reader.out)
    if not isinstance(reader, Attention):
        return False
    read = [value for value in (reader.q, reader.k, reader.v) if value is not None]
    return any(op is found for value in read for found in _chain(value, graph))
