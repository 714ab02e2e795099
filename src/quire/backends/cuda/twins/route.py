"""The twins of `kernels/route.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.twins.numbers import Floats, Grid, Numbers, like, rows_of, widened
from quire.backends.reference.ops.experts import route as reference_route
from quire.program import Param, Route, Value

Integers = NDArray[np.int32]

SCORES: tuple[Any, ...] = ("softmax", "sigmoid", "sparsemixer")


def route(
    grid: Grid, logits: Numbers, bias: Floats, out: Numbers, num_experts: int, top_k: int,
    score: int, normalise: int, has_bias: int, num_groups: int, top_groups: int, group_best: int,
    floor: float, scale: float, jitter: float, stride_logits: int, stride_out: int, BLOCK: int,
) -> None:  # fmt: skip
    """The reference's function."""
    del BLOCK
    value = Value("logits", int(num_experts))
    slot = Param("bias", (int(num_experts),), ()) if has_bias else None
    op = Route(
        value, value, int(top_k), SCORES[score], bool(normalise), slot, int(num_groups),
        int(top_groups), int(group_best), float(floor), float(scale), float(jitter),
    )  # fmt: skip
    x = widened(rows_of(logits, grid[0], stride_logits, num_experts))
    weights = reference_route(op, x, bias[:num_experts] if has_bias else None)
    rows_of(out, grid[0], stride_out, num_experts)[:] = like(weights, out)


def choose(
    grid: Grid, routes: Numbers, chosen: Integers, num_experts: int, top_k: int,
    stride_routes: int, BLOCK: int,
) -> None:  # fmt: skip
    """Row by row."""
    del BLOCK
    rows = rows_of(chosen, grid[0], top_k, top_k)
    rows[:] = -1
    for row, weights in zip(
        rows, widened(rows_of(routes, grid[0], stride_routes, num_experts)), strict=True
    ):
        taken = np.flatnonzero(weights)[:top_k]
        row[: len(taken)] = taken


def assign(
    grid: Grid, chosen: Integers, lists: Integers, counts: Integers, num_rows: int,
    num_pairs: int, BLOCK: int,
) -> None:  # fmt: skip
    """Expert by expert."""
    del BLOCK
    for expert, own in enumerate(rows_of(lists, grid[0], num_rows, num_rows)):
        pairs = np.flatnonzero(chosen[:num_pairs] == expert)
        own[: len(pairs)], counts[expert] = pairs, len(pairs)


def tiles(
    grid: Grid, counts: Integers, found: Integers, num_experts: int, BLOCK_M: int, BLOCK: int
) -> None:
    """Expert by expert."""
    del BLOCK
    entries = [
        (expert, first)
        for expert, count in enumerate(counts[:num_experts].tolist())
        for first in range(0, count, BLOCK_M)
    ]
    rows = found[: 2 * grid[0]].reshape(-1, 2)
    rows[:] = -1
    rows[: len(entries)] = np.array(entries, np.int32).reshape(-1, 2)
