"""Rows of tables, and rows that are given with a step."""

from __future__ import annotations

import numpy as np

from quire.backends.reference.ops.frame import Frame, divide, run
from quire.program import Embed, EmbedSlices, GivenColumns, LearnedPositions, TokenTypes


@run.register
def _(op: Embed, frame: Frame) -> None:
    token_ids = frame.batch.token_ids
    if op.owners is not None:  # rows of other ranks' tokens are filled in by a Gather
        first, count = op.owners.own
        token_ids = np.clip(token_ids - first, 0, count - 1)
    rows = frame.array(op.table)[token_ids]
    if frame.adapters is not None:
        frame.adapters.change_embedding(op.table.name, token_ids, rows)
    rows = rows * np.float32(op.scale) if op.scale != 1.0 else rows
    for given in frame.batch.input_rows:
        own = given.rows[:, : op.out.dim]
        rows[given.first : given.first + len(own)] = own * np.float32(op.given_scale)
    frame.values[op.out] = rows


@run.register
def _(op: GivenColumns, frame: Frame) -> None:
    columns = np.zeros((len(frame.batch.token_ids), op.out.dim), np.float32)
    for given in frame.batch.input_rows:
        part = given.rows[:, op.first : op.first + op.out.dim]
        columns[given.first : given.first + len(part), : part.shape[1]] = part
    frame.values[op.out] = columns


@run.register
def _(op: EmbedSlices, frame: Frame) -> None:
    rows = frame.array(op.table)[frame.batch.token_ids] * np.float32(op.scale)
    divide(rows, op.outs, frame)


@run.register
def _(op: LearnedPositions, frame: Frame) -> None:
    rows = frame.array(op.table)[frame.batch.positions + op.offset]
    frame.values[op.out] = frame.values[op.x] + rows


@run.register
def _(op: TokenTypes, frame: Frame) -> None:
    types = frame.batch.token_types
    rows = frame.array(op.table)[0 if types is None else types]
    frame.values[op.out] = frame.values[op.x] + rows
