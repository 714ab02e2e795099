"""Program -> native ops: what the executor can do in one pass over the data becomes one op.

    Linear (gate|up), Glu              one linear
    Linear, Act | Scale | Add          one linear, where only that op reads the product
    RmsNorm | LayerNorm, Add           one norm (models that norm a sublayer's output)
    HeadNorm, Rope (q, k), Attention   one heads op that also writes the cache, then attention

An op joins its producer only where nothing else reads the value between them, and where all
that the joint op reads exists already at the producer's place.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from quire.backends.cpu.lowering.native_ops import (
    HeadsPart,
    HeadsTarget,
    NativeAttention,
    NativeEmbed,
    NativeHeads,
    NativeLinear,
    NativeLogits,
    NativeNorm,
    NativeOp,
    NativePointwise,
    NativePositions,
    NativeTakeRows,
    Rotation,
)
from quire.errors import BackendError
from quire.program import (
    Act,
    Add,
    Attention,
    Embed,
    Glu,
    HeadNorm,
    LayerNorm,
    LearnedPositions,
    Linear,
    Logits,
    Op,
    Program,
    RmsNorm,
    Rope,
    Scale,
    TakeRows,
    Value,
)


def fuse(program: Program) -> tuple[NativeOp, ...]:
    """The native ops in order of execution. Raises BackendError for an op it does not know."""
    return _Fuser(program).run()


class _Fuser:
    """One walk over a program. Invariant: an op in `_joined` is part of a native op."""

    def __init__(self, program: Program) -> None:
        self._ops = program.ops
        self._readers: dict[Value, list[Op]] = defaultdict(list)
        self._writer: dict[Value, int] = {}
        self._joined: set[int] = set()
        self._index = {id(op): index for index, op in enumerate(program.ops)}
        for index, op in enumerate(program.ops):
            for value in op.inputs():
                self._readers[value].append(op)
            for value in op.outputs():
                self._writer[value] = index

    def run(self) -> tuple[NativeOp, ...]:
        for op in self._ops:
            if isinstance(op, Attention):
                self._join_heads(op)
        native: list[NativeOp] = []
        for index, op in enumerate(self._ops):
            if index not in self._joined:
                native.extend(self._lower(op))
        return tuple(native)

    def _lower(self, op: Op) -> tuple[NativeOp, ...]:
        match op:
            case Embed():
                return (NativeEmbed(op.out, op.table, op.scale),)
            case LearnedPositions():
                return (NativePositions(op.x, op.out, op.table, op.offset),)
            case RmsNorm():
                norm = NativeNorm(op.x, op.out, "rms", op.weight, None, op.eps, op.weight_offset)
                return (self._norm(norm),)
            case LayerNorm():
                return (self._norm(NativeNorm(op.x, op.out, "layer", op.weight, op.bias, op.eps)),)
            case Linear():
                return (self._linear(op),)
            case HeadNorm() | Rope():
                part = HeadsPart(op.x, op.num_heads, "view", op.out)
                return (NativeHeads((_with(part, op),), op.head_dim),)
            case Attention():
                return self._attention(op)
            case Glu():
                return (NativePointwise("glu", op.gate, op.out, op.up, op.act),)
            case Act():
                return (NativePointwise("act", op.x, op.out, activation=op.act),)
            case Add():
                return (NativePointwise("add", op.a, op.out, op.b),)
            case Scale():
                return (NativePointwise("scale", op.x, op.out, factor=op.factor),)
            case TakeRows():
                return (NativeTakeRows(op.x, op.out),)
            case Logits():
                return (NativeLogits(op.x, op.weight, op.bias, op.scale, op.softcap),)
        raise BackendError(f"the CPU backend has no op {type(op).__name__}")

    def _only_reader(self, value: Value) -> Op | None:
        readers = self._readers[value]
        return readers[0] if len(readers) == 1 else None

    def _join(self, op: Op) -> None:
        self._joined.add(self._index[id(op)])

    def _residual(self, value: Value) -> tuple[Add, Value] | None:
        """The Add that alone reads `value`, and its other operand, if that exists by then."""
        reader = self._only_reader(value)
        if not isinstance(reader, Add) or reader.a == reader.b:
            return None
        other = reader.b if reader.a == value else reader.a
        return (reader, other) if self._writer[other] < self._writer[value] else None

    def _norm(self, norm: NativeNorm) -> NativeNorm:
        if (found := self._residual(norm.out)) is None:
            return norm
        add, other = found
        self._join(add)
        return replace(norm, out=add.out, residual=other)

    def _linear(self, op: Linear) -> NativeLinear:
        linear = NativeLinear(op.x, op.outs, op.weight, op.bias)
        if len(op.outs) == 2:
            glu = self._only_reader(op.outs[0])
            alone = glu is self._only_reader(op.outs[1])
            if isinstance(glu, Glu) and alone and (glu.gate, glu.up) == op.outs:
                self._join(glu)
                return replace(linear, outs=(glu.out,), activation=glu.act, glu=True)
        if len(op.outs) != 1:
            return linear
        reader = self._only_reader(op.outs[0])
        if isinstance(reader, Act):
            self._join(reader)
            return replace(linear, outs=(reader.out,), activation=reader.act)
        if isinstance(reader, Scale) and op.bias is None:
            self._join(reader)
            linear = replace(linear, outs=(reader.out,), scale=reader.factor)
        if (found := self._residual_of(linear.outs[0], op.outs[0])) is not None:
            add, other = found
            self._join(add)
            return replace(linear, outs=(add.out,), residual=other)
        return linear

    def _residual_of(self, value: Value, product: Value) -> tuple[Add, Value] | None:
        """As `_residual`, for a value that is computed where `product` was."""
        found = self._residual(value)
        if found is None or self._writer[found[1]] > self._writer[product]:
            return None
        return found

    def _join_heads(self, op: Attention) -> None:
        for value in (op.q, op.k):
            for joined in self._head_chain(value):
                self._join(joined)

    def _head_chain(self, value: Value) -> tuple[HeadNorm | Rope, ...]:
        """HeadNorm and Rope, in this order and each optional, that lead to attention's `value`."""
        chain: list[HeadNorm | Rope] = []
        for wanted in (Rope, HeadNorm):
            producer = self._ops[self._writer[value]]
            if isinstance(producer, wanted) and self._only_reader(value) is not None:
                chain.insert(0, producer)
                value = producer.x
        return tuple(chain)

    def _attention(self, op: Attention) -> tuple[NativeOp, ...]:
        q = self._part(op.q, op.num_heads, "view")
        parts = [
            self._part(op.k, op.num_kv_heads, "keys"),
            self._part(op.v, op.num_kv_heads, "values"),
        ]
        if q.x != op.q:
            parts.insert(0, replace(q, out=op.q))
        heads = NativeHeads(tuple(parts), op.head_dim, op.layer)
        attention = NativeAttention(
            op.q, op.out, op.layer, op.num_heads, op.scale, op.window, op.softcap, op.alibi_slopes,
            op.activation_bits,
            taken_only=all(isinstance(reader, TakeRows) for reader in self._readers[op.out]),
        )  # fmt: skip
        return heads, attention

    def _part(self, value: Value, num_heads: int, target: HeadsTarget) -> HeadsPart:
        chain = self._head_chain(value) if target != "values" else ()
        part = HeadsPart(chain[0].x if chain else value, num_heads, target)
        for op in chain:
            part = _with(part, op)
        return part


def _with(part: HeadsPart, op: HeadNorm | Rope) -> HeadsPart:
    if isinstance(op, HeadNorm):
        return replace(part, norm=op.weight, norm_offset=op.weight_offset, eps=op.eps)
    return replace(part, rotation=Rotation(op.inv_freq, op.scale, op.interleaved))
