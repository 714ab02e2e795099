"""Chooses the factors of a fold's columns: those with the least error of the products."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quire.backends.reference.quantised import round_activations, round_weights
from quire.program import WeightFormat

Floats = NDArray[np.float32]
Matrix = tuple[Floats, WeightFormat]

MOST_ROWS = 128
"""Maximum number of rows of a matrix that are tried."""
_TOKENS = 64
_POWERS = (0.15, 0.3, 0.45, 0.6, 0.75)
_WORTH = 0.97
"""Factors must leave less than this part of the error without them."""
_MOST = 8
"""Largest exponent of a factor, to base 2."""
_LEAST = 1e-4
"""Smallest root mean square of a column, as a part of the largest one."""


def best_factors(
    squares: Floats,
    matrices: Sequence[Matrix],
    head_dim: int,
    sharing: int,
    *,
    are_exact: bool = False,
) -> Floats:
    """A factor for each column: 1, or a power of the column's root mean square.

    `squares`: mean squares of what some rows of the `matrices` are multiplied with. `sharing`:
    neighbouring heads of `head_dim` columns that get the same factors. `are_exact`: the factors are
    powers of two, which change no digit of other matrices with the same columns.
    """
    deviations = np.sqrt(squares)
    random = np.random.default_rng(0)
    x = (random.laplace(size=(_TOKENS, len(squares))) * deviations).astype(np.float32)
    of_heads = deviations.reshape(-1, sharing, head_dim)
    shared = np.sqrt(np.square(of_heads).mean(axis=1, keepdims=True))
    spread = np.broadcast_to(shared, of_heads.shape).reshape(-1)
    logs = np.log2(np.maximum(spread, spread.max(initial=0) * _LEAST))
    if not np.isfinite(logs).all():
        return np.ones_like(squares)
    logs = logs - logs.mean()
    truths = [x @ matrix.T for matrix, _ in matrices]
    best = np.ones_like(squares)
    least = _error(x, best, matrices, truths) * _WORTH
    for power in _POWERS:
        exponents = np.clip(logs * power, -_MOST, _MOST)
        factors = np.exp2(np.rint(exponents) if are_exact else exponents).astype(np.float32)
        error = _error(x, factors, matrices, truths)
        if error < least:
            best, least = factors, error
    return best


def _error(
    x: Floats, factors: Floats, matrices: Sequence[Matrix], truths: Sequence[Floats]
) -> float:
    """The squared error of the products. x is divided by the factors and the matrices are
    multiplied by them."""
    error = 0.0
    divided = x / factors
    for (matrix, weight_format), truth in zip(matrices, truths, strict=True):
        rounded = round_weights(matrix * factors, weight_format)
        found = round_activations(divided, weight_format) @ rounded.T
        error += float(np.square(found - truth, dtype=np.float64).sum())
    return error
