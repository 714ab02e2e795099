"""Exchanges of values between ranks."""

from __future__ import annotations

import numpy as np

from quire.backends.reference.ops.frame import Frame, run
from quire.program import Gather, Receive, Send


@run.register
def _(op: Gather, frame: Frame) -> None:
    if op.by == "columns":
        frame.values[op.out] = frame.gathered(frame.values[op.x], op.split)
        return
    rows = np.array(frame.values[op.x])
    frame.group.owned_rows(rows.view(np.uint8), op.split.spans)
    frame.values[op.out] = rows


@run.register
def _(op: Receive, frame: Frame) -> None:
    for out in op.outs:
        rows = np.empty((len(frame.batch.token_ids), out.dim), np.float32)
        frame.group.receive(rows.view(np.uint8))
        frame.values[out] = rows


@run.register
def _(op: Send, frame: Frame) -> None:
    for value in op.values:
        frame.group.send(np.ascontiguousarray(frame.values[value]).view(np.uint8))
