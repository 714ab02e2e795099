"""Rows of tables, and rows that are taken or given."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace

import numpy as np

from quire.backends.base import StepBatch
from quire.backends.cuda.kernel import TYPE_NAMES, Action, Arguments, Kernel, Launch, Upload, both
from quire.backends.cuda.lowering.adapters import Changes
from quire.backends.cuda.lowering.coded import CodedTable
from quire.backends.cuda.lowering.context import Emit, Lowering, Rows
from quire.backends.cuda.lowering.ranks import own_tokens
from quire.backends.cuda.memory import Buffer
from quire.backends.cuda.step import Integers, Step, StepArray
from quire.program import Embed, EmbedSlices, LearnedPositions, TakeRows, TokenTypes

_BLOCK = 512


def take_kernel(dtype: str) -> Kernel:
    """The choice of rows of one type."""
    types = (
        ("table", f"*{dtype}"), ("places", "*i32"), ("x", f"*{dtype}"), ("out", f"*{dtype}"),
        ("width", "i32"), ("factor", "fp32"), ("offset", "i32"), ("stride_table", "i32"),
        ("stride_x", "i32"), ("stride_out", "i32"), ("has_x", "i32"),
    )  # fmt: skip
    return Kernel("lookup", "take", types, (("BLOCK", _BLOCK),))


def variants() -> Iterator[Kernel]:
    """All kernels that this module launches."""
    yield from both(map(take_kernel, TYPE_NAMES.values()))


def lower_embed(op: Embed, lowering: Lowering) -> Emit:
    """Rows of the table by token id; then the rows that are given with the step replace some."""
    out, owners = lowering.rows[op.out], op.owners
    most = lowering.options.max_num_tokens
    own_ids = None if owners is None else lowering.shared("own token ids", 4 * most)
    take = _taken(op, out, lowering)
    changes = Changes(op.table, None, lowering, most, is_embedding=True, factor=op.scale)

    def emit(step: Step) -> Iterator[Action]:
        if (
            owners is not None and own_ids is not None
        ):  # rows of other ranks' tokens are filled in by a Gather
            yield own_tokens(owners, step, own_ids)
            step = replace(step, buffers={**step.buffers, "token_ids": own_ids})
        yield take(step)
        yield from changes.emit(step, out, out, 0, step.num_tokens)
        for given in step.batch.input_rows:
            rows = given.rows[:, : op.out.dim] * np.float32(op.given_scale)
            yield Upload(out.from_row(given.first).buffer, out.encoded(rows))

    return emit


def _taken(op: Embed, out: Rows, lowering: Lowering) -> Callable[[Step], Launch]:
    """The launch that looks up tokens."""
    if op.table.format != "dense":
        coded = CodedTable(op.table, out, op.scale, lowering)
        return lambda step: coded.launch(step.buffers["token_ids"], step.num_tokens)
    table = _table(lowering.weight(op.table), op.out.dim, lowering)
    take = _Take(table, "token_ids", out, lowering, factor=op.scale)
    return lambda step: take.launch(step, step.num_tokens)


def lower_embed_slices(op: EmbedSlices, lowering: Lowering) -> Emit:
    """Rows of the table by token id; the outs are neighbours."""
    first, width = lowering.rows[op.outs[0]], sum(out.dim for out in op.outs)
    out = Rows(first.buffer, first.stride, width, first.type_name)
    table = _table(lowering.weight(op.table), width, lowering)
    take = _Take(table, "token_ids", out, lowering, factor=op.scale)
    return lambda step: [take.launch(step, step.num_tokens)]


def lower_token_types(op: TokenTypes, lowering: Lowering) -> Emit:
    """Rows of the table by type, added to x."""
    table = _table(lowering.weight(op.table), op.out.dim, lowering)
    lowering.arrays.add("token types", StepArray(_types, lowering.options.max_num_tokens))
    take = _Take(table, "token types", lowering.rows[op.out], lowering, x=lowering.rows[op.x])
    return lambda step: [take.launch(step, step.num_tokens)]


def _types(batch: StepBatch) -> Integers:
    return np.zeros_like(batch.token_ids) if batch.token_types is None else batch.token_types


def lower_learned_positions(op: LearnedPositions, lowering: Lowering) -> Emit:
    """Rows of the table by position, added to x."""
    table = _table(lowering.weight(op.table), op.out.dim, lowering)
    out, x = lowering.rows[op.out], lowering.rows[op.x]
    take = _Take(table, "positions", out, lowering, offset=op.offset, x=x)
    return lambda step: [take.launch(step, step.num_tokens)]


def lower_take_rows(op: TakeRows, lowering: Lowering) -> Emit:
    """The rows whose results are wanted."""
    take = _Take(lowering.rows[op.x], "taken", lowering.rows[op.out], lowering)
    return lambda step: [take.launch(step, step.num_taken)] if step.num_taken else []


def _table(buffer: Buffer, width: int, lowering: Lowering) -> Rows:
    return Rows(buffer, width, width, lowering.type_name)


class _Take:
    """One launch."""

    def __init__(
        self,
        table: Rows,
        places: Hashable,
        out: Rows,
        lowering: Lowering,
        *,
        factor: float = 1.0,
        offset: int = 0,
        x: Rows | None = None,
    ) -> None:
        added = x or out
        self._places, self._width, self._type = places, out.width, lowering.type_name
        self._args: Arguments = {
            "table": table.buffer, "x": added.buffer, "out": out.buffer, "width": out.width,
            "factor": factor, "offset": offset, "stride_table": table.stride,
            "stride_x": added.stride, "stride_out": out.stride, "has_x": int(x is not None),
        }  # fmt: skip

    def launch(self, step: Step, num_rows: int) -> Launch:
        """The first rows of the step."""
        args: Arguments = {**self._args, "places": step.buffers[self._places]}
        kernel = take_kernel(self._type).fitted(args)
        return Launch(kernel, (num_rows, -(-self._width // _BLOCK)), args)
