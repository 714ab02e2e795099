"""Assigns each value of the native ops a place and a dtype in the workspace.

In a bfloat16 model, values that only products and attention read are bfloat16. Values that a norm
or an addition reads (the residual stream) are float32, as the ops require. The memory of a value is
reused after its last reader.

A step may be computed in pieces of some rows (`steps/pieces.py`): the ops of a stage for these
rows, then for the next ones, and so on. A value that a later stage reads has room for all rows of
the step, others have room for one piece.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from quire.backends.base import Dtype
from quire.backends.cpu.lowering.native_op import Home, NativeOp
from quire.program import Value
from quire.units import ceil_div, round_up

if TYPE_CHECKING:
    from quire.backends.cpu.lowering.stages import Pieces

ITEM_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2}
Rows = Literal["tokens", "logits"]

_LINE_BYTES = 64
_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Place:
    """A value [rows, dim] in the workspace: row r at offset_bytes + r * stride elements."""

    offset_bytes: int
    stride: int
    dim: int
    dtype: Dtype
    rows: Rows
    outlives_stage: bool = False
    """Whether a later stage reads it, so that it has the rows of all pieces."""

    @property
    def row_bytes(self) -> int:
        """Bytes from a row to the next one."""
        return self.stride * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Storage:
    """The places of all values, and the size of the workspace."""

    places: dict[Value, Place]
    workspace_bytes: int
    exchanged_offset: int = 0
    """Offset of the values that are exchanged with other ranks; they lie at the same distances from
    it on all ranks. It has no meaning without exchanges."""


@dataclass(slots=True)
class _Buffer:
    """Memory for one value, or for several values that an op writes side by side. It is in use from
    op `first` to op `last`."""

    width: int
    dtype: Dtype
    rows: Rows
    first: int
    last: int
    max_rows: int
    offset: int = 0
    is_exchanged: bool = False
    outlives_stage: bool = False

    @property
    def stride(self) -> int:
        """Elements between rows. The distance is an odd number of cache lines, so that equal
        columns of neighbouring rows fill all sets of a cache: products write their results column
        by column."""
        lines = ceil_div(self.width * ITEM_BYTES[self.dtype], _LINE_BYTES) | 1
        return lines * _LINE_BYTES // ITEM_BYTES[self.dtype]

    @property
    def row_bytes(self) -> int:
        """Bytes from a row to the next one."""
        return self.stride * ITEM_BYTES[self.dtype]

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        return self.row_bytes * self.max_rows


def assign_storage(
    ops: Sequence[NativeOp],
    dtype: Dtype,
    max_rows: int,
    homes: Mapping[Value, Home] | None = None,
    pieces: Pieces | None = None,
) -> Storage:
    """Assign a place to every value of `ops`, for steps of at most `max_rows` rows. `homes`: values
    that lie in others. `pieces`: how steps are divided; None: they are computed whole."""
    values = _Homes(homes or {})
    wide = _float32_values(ops, values) if dtype == "bfloat16" else None
    rows = _row_spaces(ops, values)
    exchanged = {value for op in ops if op.exchanges for value in op.writes if op.homes}
    buffers: dict[Value, tuple[_Buffer, int]] = {}
    for index, op in enumerate(ops):
        for value in op.reads:
            buffers[values.root(value)][0].last = index
        for group in op.buffers:
            if (len(group) == 1 and values.has_home(group[0])) or group[0] in buffers:
                root = values.root(group[0])
                group = (root,)
                if root in buffers:
                    buffers[root][0].last = index
                    continue
            stored: Dtype = dtype
            if wide is not None and any(value in wide for value in group):
                stored = "float32"
            buffer = None
            if group[0] not in exchanged:
                buffer = _in_place(op, ops, index, buffers, stored)
            if buffer is None:
                width = sum(value.dim for value in group)
                buffer = _Buffer(width, stored, rows[group[0]], index, index, max_rows)
                buffer.is_exchanged = group[0] in exchanged
            buffer.last = index
            column = 0
            for value in group:
                buffers[value] = (buffer, column)
                column += value.dim
    distinct = list({id(buffer): buffer for buffer, _ in buffers.values()}.values())
    if pieces is not None:
        _keep_until_end_of_stage(distinct, pieces)
    private = [buffer for buffer in distinct if not buffer.is_exchanged]
    shared = [buffer for buffer in distinct if buffer.is_exchanged]
    workspace_bytes, offset = _pack(private), 0
    if shared:
        offset = round_up(workspace_bytes, _PAGE_BYTES)
        _keep_until_exchanged(shared, ops)
        workspace_bytes = offset + _pack(shared)
        for buffer in shared:
            buffer.offset += offset
    if pieces is not None:  # room for a whole piece that begins at the last row
        lasting = [buffer.row_bytes for buffer in distinct if buffer.outlives_stage]
        workspace_bytes += max(lasting, default=0) * pieces.max_rows
    places = {value: _place(value, values, buffers) for value in (*buffers, *values.inner)}
    return Storage(places, workspace_bytes, offset)


def _place(value: Value, values: _Homes, buffers: Mapping[Value, tuple[_Buffer, int]]) -> Place:
    buffer, column = buffers[values.root(value)]
    column += values.first(value)
    return Place(
        buffer.offset + column * ITEM_BYTES[buffer.dtype],
        buffer.stride,
        value.dim,
        buffer.dtype,
        buffer.rows,
        buffer.outlives_stage,
    )


def _keep_until_end_of_stage(buffers: Sequence[_Buffer], pieces: Pieces) -> None:
    """The ops of a stage run again for each piece. So what another stage reads is in use as long as
    any op of its first and last stages runs."""
    for buffer in buffers:
        own = [one for one in pieces.stages if buffer.first < one.stop and one.start <= buffer.last]
        buffer.outlives_stage = len(own) > 1
        if buffer.outlives_stage:
            buffer.first, buffer.last = own[0].start, own[-1].stop - 1
        else:
            buffer.max_rows = pieces.max_rows


def _keep_until_exchanged(buffers: Sequence[_Buffer], ops: Sequence[NativeOp]) -> None:
    """Another rank may read a value until it comes to the next exchange."""
    waits = [index for index, op in enumerate(ops) if op.exchanges]
    for buffer in buffers:
        buffer.last = next((index for index in waits if index > buffer.last), len(ops))


class _Homes:
    """Which values lie in which others."""

    def __init__(self, homes: Mapping[Value, Home]) -> None:
        self._homes = homes
        self._families: dict[Value, set[Value]] = defaultdict(set)
        for value in homes:
            self._families[self.root(value)] |= {value, self.root(value)}

    @property
    def inner(self) -> Iterable[Value]:
        """The values that lie in others."""
        return self._homes

    def has_home(self, value: Value) -> bool:
        """Whether it lies in another."""
        return value in self._homes

    def root(self, value: Value) -> Value:
        """The value with memory of its own."""
        while value in self._homes:
            value = self._homes[value].value
        return value

    def first(self, value: Value) -> int:
        """The value's first column in the root."""
        first = 0
        while value in self._homes:
            first += self._homes[value].first
            value = self._homes[value].value
        return first

    def family(self, value: Value) -> set[Value]:
        """All values in the same memory."""
        return self._families.get(self.root(value), {value})


def _float32_values(ops: Sequence[NativeOp], values: _Homes) -> set[Value]:
    """Values that a reader or writer needs in float32 in a bfloat16 model."""
    found: set[Value] = set()
    for op in reversed(ops):
        for value in op.float32_values(found):
            found |= values.family(value)
    # Values that one product writes are stored alike, so one rank has all of them in float32 if one
    # has to be; a rank that copies some of them must not round them.
    together = {value: group for op in ops for group in op.buffers for value in group}
    for op in ops:
        if op.copied is not None and not found.isdisjoint(together[op.copied]):
            found |= {one for value in op.writes for one in values.family(value)}
    return found


def _row_spaces(ops: Sequence[NativeOp], values: _Homes) -> dict[Value, Rows]:
    spaces: dict[Value, Rows] = {}
    for op in ops:
        taken = op.takes_rows or any(spaces[values.root(v)] == "logits" for v in op.reads)
        for value in op.writes:
            spaces[values.root(value)] = spaces[value] = "logits" if taken else "tokens"
    return spaces


def _in_place(
    op: NativeOp,
    ops: Sequence[NativeOp],
    index: int,
    buffers: dict[Value, tuple[_Buffer, int]],
    dtype: Dtype,
) -> _Buffer | None:
    """Return the buffer of the residual to which a product is added, if the product can replace it:
    no later op reads the residual, and both have the same width."""
    residual = op.adds_to
    if residual not in buffers or dtype != "float32" or buffers[residual][0].is_exchanged:
        return None
    if any(residual in later.reads for later in ops[index + 1 :]):
        return None
    buffer, _ = buffers[residual]
    alone = buffer.width == residual.dim == op.writes[0].dim
    return buffer if alone else None


def _pack(buffers: list[_Buffer]) -> int:
    """Set the offset of every buffer (first fit, the largest first) and return the total bytes."""
    placed: list[_Buffer] = []
    total = 0
    for buffer in sorted(buffers, key=lambda b: (-b.size, b.first)):
        size = buffer.size
        rivals = sorted(
            (
                other
                for other in placed
                if other.first <= buffer.last and buffer.first <= other.last
            ),
            key=lambda other: other.offset,
        )
        offset = 0
        for other in rivals:
            if offset + size <= other.offset:
                break
            offset = max(offset, round_up(other.offset + other.size, _LINE_BYTES))
        buffer.offset = offset
        placed.append(buffer)
        total = max(total, offset + size)
    return total
