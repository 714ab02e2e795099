"""The twins of `kernels/ranks.py`."""

from __future__ import annotations

import numpy as np

from quire.backends.cuda.twins.numbers import Grid, Integers, Numbers, rows_of


def own_ids(
    grid: Grid, token_ids: Integers, out: Integers, first: int, count: int, num_tokens: int,
    BLOCK: int,
) -> None:  # fmt: skip
    """All tokens at once."""
    del grid, BLOCK
    out[:num_tokens] = np.clip(token_ids[:num_tokens] - first, 0, count - 1)


def unite(
    grid: Grid, parts: Numbers, begins: Integers, token_ids: Integers, out: Numbers, width: int,
    num_ranks: int, stride_rank: int, stride_part: int, stride_out: int, by_owner: int, BLOCK: int,
) -> None:  # fmt: skip
    """Rank by rank."""
    del BLOCK
    count = grid[0]
    target = rows_of(out, count, stride_out, width)
    bounds = [*begins[:num_ranks].tolist(), np.iinfo(np.int32).max if by_owner else width]
    for rank in range(num_ranks):
        first, end = bounds[rank], bounds[rank + 1]
        part = parts[rank * int(stride_rank) :]
        if by_owner:
            own = (token_ids[:count] >= first) & (token_ids[:count] < end)
            target[own] = rows_of(part, count, stride_part, width)[own]
        else:
            target[:, first:end] = rows_of(part, count, stride_part, end - first)
