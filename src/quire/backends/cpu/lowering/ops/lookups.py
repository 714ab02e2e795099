"""Lookups of rows: token embeddings, learned positions, and the rows for logits."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from quire.backends.cpu.lowering.graph import Graph, lower, lowers
from quire.backends.cpu.lowering.native_op import Fields, NativeOp, StoredWeight
from quire.program import (
    Embed,
    EmbedSlices,
    GivenColumns,
    LearnedPositions,
    OpPlace,
    Param,
    Split,
    TakeRows,
    TokenTypes,
    Value,
)


@dataclass(frozen=True, slots=True)
class NativeEmbed(NativeOp):
    """Rows of an embedding table in float32, as one value or as several side by side.

    `tied`: the table is also the head's matrix. Its packed form is read, so that the table is not
    stored twice.
    """

    struct: ClassVar[str] = "embed"
    outs: tuple[Value, ...]
    table: Param
    scale: float
    tied: bool
    owners: Split | None = None
    takes_given: bool = True
    """Whether rows that the step has for some tokens take the place of the table's."""

    @property
    def buffers(self) -> tuple[tuple[Value, ...], ...]:
        return (self.outs,)

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.table.name)

    @property
    def weights(self) -> tuple[StoredWeight, ...]:
        return (StoredWeight("matrix" if self.tied else "table", self.table),)

    def float32_values(self, wide: Collection[Value]) -> tuple[Value, ...]:  # noqa: ARG002
        return self.outs

    def fill(self, struct: Any, fields: Fields) -> None:
        fields.view(struct.out, self.outs[0], sum(out.dim for out in self.outs))
        weight = fields.weight(self.weights[0])
        struct.matrix, struct.table = (weight, -1) if self.tied else (-1, weight)
        struct.scale = self.scale
        struct.given_first = 0 if self.takes_given else -1
        struct.first_id = 0 if self.owners is None else self.owners.own[0]
        struct.num_ids = self.table.shape[0] if self.owners is None else self.owners.total


@dataclass(frozen=True, slots=True)
class NativeGivenColumns(NativeOp):
    """Numbers of the rows that a step has for some tokens."""

    struct: ClassVar[str] = "embed"
    out: Value
    first: int
    vocab_size: int

    def float32_values(self, wide: Collection[Value]) -> tuple[Value, ...]:  # noqa: ARG002
        return (self.out,)

    def fill(self, struct: Any, fields: Fields) -> None:
        fields.view(struct.out, self.out)
        struct.matrix = struct.table = -1
        struct.given_first = self.first
        struct.num_ids = self.vocab_size


@dataclass(frozen=True, slots=True)
class NativePositions(NativeOp):
    """x plus the row of a table for each token, by its position or its type."""

    struct: ClassVar[str] = "positions"
    x: Value
    out: Value
    table: Param
    offset: int = 0
    by_type: bool = False

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.table.name)

    @property
    def weights(self) -> tuple[StoredWeight, ...]:
        return (StoredWeight("table", self.table),)

    def fill(self, struct: Any, fields: Fields) -> None:
        fields.view(struct.x, self.x)
        fields.view(struct.out, self.out)
        struct.table = fields.weight(self.weights[0])
        struct.offset = self.offset
        struct.by_type = self.by_type


@dataclass(frozen=True, slots=True)
class NativeTakeRows(NativeOp):
    """The rows for which logits are computed, in the dtype that the reader needs."""

    struct: ClassVar[str] = "take_rows"
    takes_rows: ClassVar[bool] = True
    x: Value
    out: Value

    def float32_values(self, wide: Collection[Value]) -> tuple[Value, ...]:
        return (self.x,) if self.out in wide else ()

    def fill(self, struct: Any, fields: Fields) -> None:
        fields.view(struct.x, self.x)
        fields.view(struct.out, self.out)


@lower.register
def _(op: Embed, graph: Graph) -> tuple[NativeOp, ...]:
    # The first stage of a pipeline has no head, but must have the same numbers.
    tied = op.table.format != "dense" or op.table.name == graph.program.head_name
    return (NativeEmbed((op.out,), op.table, op.scale, tied, op.owners),)


lowers(GivenColumns, lambda op: NativeGivenColumns(op.out, op.first, op.vocab_size))
lowers(
    EmbedSlices,
    lambda op: NativeEmbed(op.outs, op.table, op.scale, tied=False, takes_given=False),
)
lowers(LearnedPositions, lambda op: NativePositions(op.x, op.out, op.table, op.offset))
lowers(TokenTypes, lambda op: NativePositions(op.x, op.out, op.table, by_type=True))
lowers(TakeRows, lambda op: NativeTakeRows(op.x, op.out))
