"""The twins of `kernels/adapters.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.twins.numbers import Floats, Grid, Numbers, like, widened

Integers = NDArray[np.int32]


def shrink(
    grid: Grid, x: Numbers, a: Numbers, owners: Integers, chosen: Integers, token_ids: Integers,
    hidden: Floats, number: int, expert: int, num_pairs: int, pairs_of_owner: int,
    pairs_of_row: int, rank: int, K: int, scale: float, stride_x: int, has_experts: int,
    is_lookup: int, **_tile: int,
) -> None:  # fmt: skip
    """Row by row."""
    del grid
    for pair in _own(num_pairs, owners, chosen, number, expert, pairs_of_owner, has_experts):
        if is_lookup:
            found = widened(a[token_ids[pair] * rank :][:rank])
        else:
            row = widened(x[pair // pairs_of_row * stride_x :][:K])
            found = (widened(a[: rank * K]).reshape(rank, K) * row).sum(axis=1)
        hidden[pair * rank : (pair + 1) * rank] = found * scale


def expand(
    grid: Grid, hidden: Floats, b: Numbers, bias: Floats, gains: Floats, added: Floats, y: Numbers,
    owners: Integers, chosen: Integers, number: int, expert: int, num_pairs: int,
    pairs_of_owner: int, rank: int, N: int, scale: float, factor: float, stride_y: int,
    has_experts: int, has_bias: int, has_gains: int, has_added: int, **_tile: int,
) -> None:  # fmt: skip
    """Row by row."""
    del grid
    matrix = widened(b[: N * rank]).reshape(N, rank)
    for pair in _own(num_pairs, owners, chosen, number, expert, pairs_of_owner, has_experts):
        place = y[pair * stride_y :][:N]
        change = (matrix * hidden[pair * rank : (pair + 1) * rank]).sum(axis=1)
        result = widened(place) + change * factor
        if has_bias:
            result = result + bias[:N] * scale
        if has_gains:
            own = added[:N] if has_added else np.float32(0)
            result = (result - own) * gains[:N] + own
        place[:] = like(result, y)


def _own(
    count: int, owners: Integers, chosen: Integers, number: int, expert: int, pairs_of_owner: int,
    has_experts: int,
) -> list[int]:  # fmt: skip
    """The rows that the adapter changes."""
    is_own = owners[np.arange(count) // pairs_of_owner] == number
    if has_experts:
        is_own &= chosen[:count] == expert
    found: list[int] = np.flatnonzero(is_own).tolist()
    return found
