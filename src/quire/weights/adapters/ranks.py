"""`adapter_of_rank`: what one of several ranks computes of an adapter.

A rank has some rows of each weight, so it has the same rows of B, and all of A: no sum is split. Of
an embedding it has the rows of A of its own token ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from quire.program import Embed, Experts, Linear, Logits, Param, Program
from quire.weights.adapters.parts import AdapterPart, AdapterWeights, Floats


def adapter_of_rank(whole: AdapterWeights, program: Program) -> AdapterWeights:
    """The parts of an adapter that change weights of a rank's program."""
    params = dict(_params(program))
    found = (
        _of_rank(part, params[part.param, part.is_embedding])
        for part in whole.parts
        if (part.param, part.is_embedding) in params
    )
    return AdapterWeights(tuple(part for part in found if part is not None))


def _params(program: Program) -> Iterator[tuple[tuple[str, bool], Param]]:
    for op in program.ops:
        if isinstance(op, Embed):
            yield (op.table.name, True), op.table
        elif isinstance(op, Linear | Logits):
            yield (op.weight.name, False), op.weight
        elif isinstance(op, Experts):
            yield (op.gate_up.name, False), op.gate_up
            yield (op.down.name, False), op.down


def _of_rank(part: AdapterPart, param: Param) -> AdapterPart | None:
    """The part for the rows that a rank has of a weight; None: it has none of them."""
    if param.share is None:
        return part
    if part.is_embedding:
        return replace(part, a=_taken(part.a, param.share.runs))
    rows: list[tuple[int, int]] = []
    expert, from_row = divmod(part.first_row, param.share.total)
    first_row = begin = expert * sum(count for _, count in param.share.runs)
    for first, count in param.share.runs:
        low, high = max(first, from_row), min(first + count, from_row + len(part.b))
        if low < high:
            first_row = first_row if rows else begin + low - first
            rows.append((low - from_row, high - low))
        begin += count
    if not rows:
        return None
    return replace(
        part,
        first_row=first_row,
        b=_taken(part.b, rows),
        bias=None if part.bias is None else _taken(part.bias, rows),
        gains=None if part.gains is None else _taken(part.gains, rows),
    )


def _taken(array: Floats, rows: tuple[tuple[int, int], ...] | list[tuple[int, int]]) -> Floats:
    return np.concatenate([array[first : first + count] for first, count in rows])
