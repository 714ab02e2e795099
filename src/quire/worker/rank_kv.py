"""The part of given K and V that a rank writes to its cache: its layers and its heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from quire.backends.records import StepBatch, TokenRows
from quire.config.ranks import Rank
from quire.program import Program
from quire.program.passes import kv_columns, of_rank

Run = tuple[int, int]
"""The first column and the number of columns."""


def kv_runs(program: Program, rank: Rank) -> list[Run]:
    """The columns of a given row that a rank has: K and V of its layers and heads. `program`: that
    of the whole model."""
    part = of_rank(program, rank)
    end = part.first_memory + len(part.program.memories())
    runs: list[Run] = []
    begin = 0
    for op in program.attention_ops():
        if op.k is None or op.v is None or op.layer is None:
            continue
        if part.first_memory <= op.layer < end:
            (key, num_keys), (value, num_values) = kv_columns(op, rank.tensor, rank.tensor_size)
            runs += [(begin + key, num_keys), (begin + op.k.dim + value, num_values)]
        begin += op.k.dim + op.v.dim
    return runs


def own_kv(batch: StepBatch, runs: Sequence[Run]) -> StepBatch:
    """The step with these columns of given K and V."""
    if not batch.given_kv:
        return batch
    own = [
        TokenRows(one.first, np.concatenate([one.rows[:, a : a + n] for a, n in runs], axis=1))
        for one in batch.given_kv
    ]
    return replace(batch, given_kv=own)
