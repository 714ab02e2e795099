"""Lookups of rows: token embeddings and learned positions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from quire.backends.cpu.lowering.graph import Graph, lower, lowers
from quire.backends.cpu.lowering.native_op import NativeOp, StoredWeight
from quire.program import (
    Embed,
    EmbedSlices,
    GivenColumns,
    LearnedPositions,
    OpPlace,
    Param,
    TokenTypes,
    Value,
)


@dataclass(frozen=True, slots=True)
class NativeEmbed(NativeOp):
    """Rows of an embedding table in float32, times `scale`, as one value or as several side by
    side; or numbers of the rows that a step has for some tokens.

    `matrix`: the table as the head's matrix, whose packed form is read, so that the table is not
    stored twice. Without table and matrix, tokens that have no given row get zeros.
    """

    outs: tuple[Value, ...]
    table: StoredWeight | None
    matrix: StoredWeight | None
    scale: float
    first_id: int
    """The token id of the table's first row; rows of other ids are left as they are."""
    num_ids: int
    """The rows of the tables of all ranks together."""
    given_first: int
    """The first of a given row's numbers that is read; -1: none is."""

    @property
    def place(self) -> OpPlace:
        weight = self.table or self.matrix
        return OpPlace.named(self.outs[0].name if weight is None else weight.param.name)

    def float32_values(self, wide: Collection[Value]) -> tuple[Value, ...]:  # noqa: ARG002
        return self.outs


@dataclass(frozen=True, slots=True)
class NativePositions(NativeOp):
    """x plus row i + `offset` of a table for each token: i is its position, or its type."""

    x: Value
    out: Value
    table: StoredWeight
    offset: int = 0
    by_type: bool = False

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.table.param.name)


@lower.register
def _(op: Embed, graph: Graph) -> tuple[NativeOp, ...]:
    # The first stage of a pipeline has no head, but must have the same numbers.
    tied = op.table.format != "dense" or op.table.name == graph.program.head_name
    table, matrix = (None, StoredWeight("matrix", op.table)) if tied else (_table(op.table), None)
    first = 0 if op.owners is None else op.owners.own[0]
    num_ids = op.table.shape[0] if op.owners is None else op.owners.total
    return (NativeEmbed((op.out,), table, matrix, op.scale, first, num_ids, 0),)


def _table(param: Param) -> StoredWeight:
    return StoredWeight("table", param)


lowers(GivenColumns, lambda op: NativeEmbed((op.out,), None, None, 1.0, 0, op.vocab_size, op.first))
lowers(
    EmbedSlices,
    lambda op: NativeEmbed(op.outs, _table(op.table), None, op.scale, 0, op.table.shape[0], -1),
)
lowers(LearnedPositions, lambda op: NativePositions(op.x, op.out, _table(op.table), op.offset))
lowers(TokenTypes, lambda op: NativePositions(op.x, op.out, _table(op.table), by_type=True))
