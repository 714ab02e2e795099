"""Which rows of a step have results, and what the results are."""

from __future__ import annotations

import numpy as np

from quire.backends.reference.ops.frame import Frame, divide, run
from quire.errors import BackendError
from quire.program import Columns, Logits, MeanRows, RowsIn, RowsOut, TakeRows, Vectors

_MEAN_BLOCK = 16
"""Tokens whose sum is taken first: see `MeanRows`."""


@run.register
def _(op: TakeRows, frame: Frame) -> None:
    frame.values[op.out] = frame.values[op.x][frame.batch.logits_rows]


@run.register
def _(op: MeanRows, frame: Frame) -> None:
    x, starts = frame.values[op.x], frame.batch.seq_starts
    out = np.empty((len(frame.batch.logits_rows), op.out.dim), np.float32)
    requests = np.searchsorted(starts, frame.batch.logits_rows, side="right") - 1
    unpooled = frame.batch.unpooled
    for row, request in enumerate(requests):
        if unpooled is not None and unpooled[row]:
            out[row] = x[frame.batch.logits_rows[row]]
            continue
        tokens = x[starts[request] : starts[request + 1]].astype(np.float64)
        sums = [
            tokens[at : at + _MEAN_BLOCK].sum(axis=0) for at in range(0, len(tokens), _MEAN_BLOCK)
        ]
        out[row] = np.sum(sums, axis=0) / len(tokens)
    frame.values[op.out] = out


@run.register
def _(op: Vectors, frame: Frame) -> None:
    frame.values[op.out] = frame.values[op.x]


@run.register
def _(op: Logits, frame: Frame) -> None:
    logits = frame.multiply(op.x, op.weight)
    logits *= np.float32(op.scale)  # in place: these are the largest values of a step
    if op.bias is not None:
        logits += frame.array(op.bias)
    if op.softcap is not None:
        cap = np.float32(op.softcap)
        logits /= cap
        np.tanh(logits, out=logits)
        logits *= cap
    if op.columns is not None:
        logits = frame.gathered(logits, op.columns)
    frame.values[op.out] = logits


@run.register
def _(op: Columns, frame: Frame) -> None:
    frame.values[op.out] = frame.values[op.x][:, op.first : op.first + op.out.dim]


@run.register
def _(op: RowsIn, frame: Frame) -> None:
    rows, width = frame.batch.rows_in, sum(out.dim for out in op.outs)
    if rows is None or rows.shape != (len(frame.batch.token_ids), width):
        raise BackendError(f"a step needs rows_in with {width} numbers for each token")
    divide(rows.astype(np.float32), op.outs, frame)


@run.register
def _(op: RowsOut, frame: Frame) -> None:
    frame.rows_out.append(frame.values[op.x])
