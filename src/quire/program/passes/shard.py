"""Splits a program among the ranks of a tensor-parallel group.

Every product is split by its output columns, and what a later op needs in full is gathered. No sum
is split: each output element is one rank's sum over all of K, so a rank's numbers have the bits
that one rank alone computes, for any number of ranks, even or not.

    q, k, v        by KV heads; where there are more ranks than KV heads, ranks share one
    attention      by heads, as q is; the KV cache of a rank has its own heads, and those of
                   its heads that an encoder's rows have
    o, gate, up, down, and every other product        by columns
    experts        by columns inside each expert
    head, embedding                                   by rows of the vocabulary
    norms, routers, learned positions                 each rank computes all of it

Other ops that are `is_by_column` are computed for the columns that a rank has. The rest is computed
as a whole by every rank, which is always right.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import singledispatch

from quire.errors import ConfigError, IntegrityError
from quire.program.ops import (
    Attention,
    Columns,
    Embed,
    Experts,
    Gather,
    HeadNorm,
    KeepSources,
    Linear,
    Logits,
    Module,
    Op,
    Rope,
)
from quire.program.passes.shares import Run, between, even, shared, shared_by_expert
from quire.program.program import Program
from quire.program.values import Param, Split, Value


def shard(program: Program, rank: int, num_ranks: int) -> Program:
    """The program of one rank. All ranks' programs have the same ops in the same order.

    Raises ConfigError if the model cannot be split among so many ranks.
    """
    if num_ranks == 1:
        return program
    kv_heads = {
        op.layer: _heads(op, rank, num_ranks).kv
        for op in program.attention_ops()
        if op.layer is not None and op.relative is None
    }
    shards = _Shards(rank, num_ranks, _wanted(program, kv_heads, rank, num_ranks), kv_heads)
    for op in program.ops:
        _shard_op(op, shards)
    sharded = replace(program, ops=tuple(shards.ops))
    sharded.check()
    return sharded


@dataclass(slots=True)
class _Part:
    """A value of which this rank has some columns."""

    value: Value
    split: Split


@dataclass(slots=True)
class _Shards:
    """The program of a rank as it grows, and what the rank has of each value so far."""

    rank: int
    num_ranks: int
    wanted: dict[Value, Split]
    """Split of the values that lead to attention."""
    kv_heads: dict[int, Split]
    """Split of the heads of K and V that a layer keeps."""
    ops: list[Op] = field(default_factory=list)
    parts: dict[Value, _Part] = field(default_factory=dict)
    wholes: set[Value] = field(default_factory=set)
    columns: dict[tuple[Value, Split], Value] = field(default_factory=dict)

    def whole(self, value: Value) -> Value:
        """The value with all its columns; gathers it when it is first asked for."""
        if value not in self.wholes:
            part = self.parts[value]
            if not part.split.is_partition:
                raise IntegrityError(f"{value} is split as {part.split} and cannot be gathered")
            self.ops.append(Gather(part.value, value, part.split))
            self.wholes.add(value)
        return value

    def own(self, value: Value, split: Split, name: str) -> Value:
        """The columns of a value that this rank has by a split; `name`: if they are taken here."""
        part = self.parts.get(value)
        if part is not None and part.split == split:
            return part.value
        if (value, split) not in self.columns:
            first, count = split.own
            taken = Value(name, count)
            self.ops.append(Columns(self.whole(value), taken, first))
            self.columns[value, split] = taken
        return self.columns[value, split]

    def part(self, value: Value, split: Split) -> Value:
        """A name for this rank's columns of a value that an op is about to write."""
        own = Value(f"{value.name}.part", split.own[1])
        self.parts[value] = _Part(own, split)
        return own

    def split_of_product(self, value: Value) -> Split | None:
        """Split of the columns of a product: for attention if it leads there, otherwise even."""
        return self.wanted.get(value) or even(value.dim, self.num_ranks, self.rank)


def _whole(op: Op, shards: _Shards) -> None:
    """Every rank computes the whole op."""
    for value in op.inputs():
        shards.whole(value)
    shards.ops.append(op)
    shards.wholes.update(op.outputs())


@singledispatch
def _shard_op(op: Op, shards: _Shards) -> None:
    """Adds the op of this rank, and the gathers that it needs before it."""
    (_by_column if op.is_by_column else _whole)(op, shards)


@_shard_op.register
def _(op: Module, shards: _Shards) -> None:
    raise ConfigError(
        f"tensor_parallel_size={shards.num_ranks}: {op.source} is computed by transformers, which "
        "runs on one rank; use tensor_parallel_size=1"
    )


@_shard_op.register
def _(op: Linear, shards: _Shards) -> None:
    splits = [split for out in op.outs if (split := shards.split_of_product(out)) is not None]
    if op.exact or len(splits) < len(op.outs):
        _whole(op, shards)
        return
    runs, begin = [], 0
    for out, split in zip(op.outs, splits, strict=True):
        first, count = split.own
        runs.append((begin + first, count))
        begin += out.dim
    x = shards.whole(op.x)
    outs = tuple(shards.part(out, split) for out, split in zip(op.outs, splits, strict=True))
    bias = None if op.bias is None else shared(op.bias, runs)
    shards.ops.append(Linear(x, outs, shared(op.weight, runs), bias))


@_shard_op.register
def _(op: Attention, shards: _Shards) -> None:
    if op.relative is not None:  # its weights are [distances, heads], and rows alone are split
        _whole(op, shards)
        return
    by_heads = _heads(op, shards.rank, shards.num_ranks)
    first, count = by_heads.query.own
    slopes = op.alibi_slopes
    value_dim = op.value_dim or op.head_dim

    def own(value: Value, split: Split, dim: int, name: str) -> Value:
        return shards.own(value, split.scaled(dim), f"{op.out.name}.{name}")

    q = own(op.q, by_heads.query, op.head_dim, "q")
    k = None if op.k is None else own(op.k, by_heads.kv, op.head_dim, "k")
    v = None if op.v is None else own(op.v, by_heads.kv, value_dim, "v")
    shards.ops.append(
        replace(
            op,
            q=q,
            k=k,
            v=v,
            out=shards.part(op.out, by_heads.query.scaled(value_dim)),
            num_heads=count,
            num_kv_heads=by_heads.kv.own[1],
            alibi_slopes=None if slopes is None else slopes[first : first + count],
            sinks=None if op.sinks is None else shared(op.sinks, [by_heads.query.own]),
        )
    )


@_shard_op.register
def _(op: KeepSources, shards: _Shards) -> None:
    heads = shards.kv_heads[op.layer]
    columns = heads.scaled(op.head_dim)
    k, v = (shards.own(value, columns, f"{value.name}.own") for value in (op.k, op.v))
    shards.ops.append(replace(op, k=k, v=v, num_kv_heads=heads.own[1]))


def _by_column(op: Op, shards: _Shards) -> None:
    """On this rank's columns if an input has no others yet, and as a whole otherwise."""
    [out] = op.outputs()
    parts = [
        shards.parts[value]
        for value in op.inputs()
        if value in shards.parts and value not in shards.wholes and value.dim == out.dim
    ]
    if not parts or any(part.split != parts[0].split for part in parts):
        _whole(op, shards)
        return
    split = parts[0].split
    if isinstance(op, HeadNorm | Rope) and not _is_by_heads(split, op.head_dim):
        _whole(op, shards)
        return
    changes: dict[str, object] = {
        one.name: shards.own(value, split, f"{out.name}.{one.name}")
        if value.dim == out.dim
        else shards.whole(value)
        for one in fields(op)
        if isinstance(value := getattr(op, one.name), Value) and one.name != "out"
    }
    if isinstance(op, HeadNorm | Rope):
        changes["num_heads"] = split.own[1] // op.head_dim
    for one in fields(op):
        if isinstance(param := getattr(op, one.name), Param) and param.shape == (out.dim,):
            changes[one.name] = shared(param, [split.own])
    changes["out"] = shards.part(out, split)
    shards.ops.append(replace(op, **changes))


def _is_by_heads(split: Split, head_dim: int) -> bool:
    return not any(first % head_dim or count % head_dim for first, count in split.spans)


@_shard_op.register
def _(op: Experts, shards: _Shards) -> None:
    num_experts, _, width = op.down.shape
    inner = even(width, shards.num_ranks, shards.rank)
    split = even(op.out.dim, shards.num_ranks, shards.rank)
    if inner is None or split is None:
        _whole(op, shards)
        return
    x, routes = shards.whole(op.x), shards.whole(op.routes)
    (first, count), own = inner.own, split.own
    runs = [(first, count), (width + first, count)][: 1 + op.gated]
    gate_up_bias, down_bias = op.gate_up_bias, op.down_bias
    if gate_up_bias is not None and down_bias is not None:
        gate_up_bias = shared_by_expert(gate_up_bias, num_experts, runs)
        down_bias = shared_by_expert(down_bias, num_experts, [own])
    shards.ops.append(
        replace(
            op,
            x=x,
            routes=routes,
            out=shards.part(op.out, split),
            gate_up=shared(op.gate_up, runs),
            down=shared(op.down, [own]),
            gate_up_bias=gate_up_bias,
            down_bias=down_bias,
            inner=inner,
        )
    )


@_shard_op.register
def _(op: Embed, shards: _Shards) -> None:
    owners = even(op.table.shape[0], shards.num_ranks, shards.rank)
    if owners is None:
        _whole(op, shards)
        return
    own = Value(f"{op.out.name}.own", op.out.dim)
    shards.ops.append(replace(op, out=own, table=shared(op.table, [owners.own]), owners=owners))
    shards.ops.append(Gather(own, op.out, owners, "owner"))
    shards.wholes.add(op.out)


@_shard_op.register
def _(op: Logits, shards: _Shards) -> None:
    columns = even(op.out.dim, shards.num_ranks, shards.rank)
    if columns is None:
        _whole(op, shards)
        return
    bias = None if op.bias is None else shared(op.bias, [columns.own])
    weight = shared(op.weight, [columns.own])
    x = shards.whole(op.x)
    shards.ops.append(replace(op, x=x, weight=weight, bias=bias, columns=columns))
    shards.wholes.add(op.out)


@dataclass(frozen=True, slots=True)
class _Heads:
    """Split of the heads of an attention, counted in heads."""

    query: Split
    kv: Split


def _heads(op: Attention, rank: int, num_ranks: int) -> _Heads:
    """KV heads with their query heads. With fewer KV heads than ranks, ranks share a KV head and
    split its query heads."""
    group = op.num_heads // op.num_kv_heads
    kv = even(op.num_kv_heads, num_ranks, rank, step=1)
    if kv is not None:
        return _Heads(kv.scaled(group), kv)
    if op.num_heads < num_ranks:
        raise ConfigError(
            f"tensor_parallel_size={num_ranks}: the model has {op.num_heads} query heads, and each "
            f"rank needs one; use at most {op.num_heads}"
        )
    query: list[tuple[int, int]] = []
    kv_spans: list[tuple[int, int]] = []
    left = num_ranks
    for head in range(op.num_kv_heads):
        holders = -(-left // (op.num_kv_heads - head))
        left -= holders
        bounds = [group * (head * holders + part) // holders for part in range(holders + 1)]
        query += between(bounds)
        kv_spans += [(head, 1)] * holders
    return _Heads(Split(tuple(query), rank), Split(tuple(kv_spans), rank))


def kv_columns(op: Attention, rank: int, num_ranks: int) -> tuple[Run, Run]:
    """The columns of an attention's K and V that a rank has."""
    if num_ranks == 1 or op.relative is not None:
        first, count = 0, op.num_kv_heads
    else:
        first, count = _heads(op, rank, num_ranks).kv.own
    value_dim = op.value_dim or op.head_dim
    return (first * op.head_dim, count * op.head_dim), (first * value_dim, count * value_dim)


def _wanted(
    program: Program, kv_heads: dict[int, Split], rank: int, num_ranks: int
) -> dict[Value, Split]:
    """Split of the inputs of attention, and of the values that lead to them by columns."""
    wanted: dict[Value, Split] = {}
    needed_whole = {
        value
        for op in program.ops
        if not (op.is_by_column or isinstance(op, Attention))
        for value in op.inputs()
    }

    def want(value: Value | None, split: Split) -> None:
        if value is not None and (split.is_partition or value not in needed_whole):
            wanted.setdefault(value, split)

    for op in reversed(program.ops):
        if isinstance(op, Attention) and op.relative is None:
            heads = _heads(op, rank, num_ranks)
            want(op.q, heads.query.scaled(op.head_dim))
            want(op.k, heads.kv.scaled(op.head_dim))
            want(op.v, heads.kv.scaled(op.value_dim or op.head_dim))
        elif isinstance(op, KeepSources):
            want(op.k, kv_heads[op.layer].scaled(op.head_dim))
            want(op.v, kv_heads[op.layer].scaled(op.head_dim))
        elif op.is_by_column:
            [out] = op.outputs()
            for value in op.inputs():
                if out in wanted and value.dim == out.dim:
                    want(value, wanted[out])
    return wanted
