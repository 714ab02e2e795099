"""When each token is spoken: the alignment of tokens and positions by dynamic time warping.

Legend: H heads, T tokens, P positions of 20 ms.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.transcription.records import Floats

_MEDIAN = 7
_MEDIAN_STEPS = (
    (0, 5), (0, 3), (1, 6), (2, 4), (0, 1), (3, 5), (2, 6), (2, 3), (3, 6), (4, 5), (1, 4), (1, 3),
    (3, 4),
)  # fmt: skip
"""Pairs of a sorting network: each becomes its smaller and its larger value. Then number 3 of seven
values is the median."""
_DIAGONAL, _UP, _LEFT = 0, 1, 2


def token_positions(products: Floats, num_positions: int, num_before: int) -> NDArray[np.intp]:
    """The position [T - num_before - 1] at which each token begins, and at which the last one
    ends. `products` [H, T, P]: of the tokens of a whole window, the last of which is the end token.
    `num_positions`: those that the sound has. `num_before`: tokens before the text, without the
    last of them, whose row predicts the first token of the text."""
    weights = products[:, :, :num_positions].astype(np.float32)
    weights = np.exp(weights - weights.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    deviation = weights.std(-2, keepdims=True)
    weights = (weights - weights.mean(-2, keepdims=True)) / np.maximum(deviation, 1e-12)
    matrix = _median(weights).mean(0)[num_before:-1]
    return first_positions(-matrix)


def _median(values: Floats) -> Floats:
    """The median of each value and its three neighbours at each side, mirrored at the ends."""
    reach = _MEDIAN // 2
    if values.shape[-1] <= reach:
        return values
    around = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(reach, reach)], mode="reflect")
    size = values.shape[-1]
    parts = [around[..., shift : shift + size].copy() for shift in range(_MEDIAN)]
    spare = np.empty_like(values)
    for low, high in _MEDIAN_STEPS:
        np.minimum(parts[low], parts[high], out=spare)
        np.maximum(parts[low], parts[high], out=parts[high])
        parts[low], spare = spare, parts[low]
    found: Floats = parts[_MEDIAN // 2]
    return found


def first_positions(costs: Floats) -> NDArray[np.intp]:
    """The first position of each row on the cheapest path through `costs` [T, P] from the first to
    the last cell, which goes to the next token, the next position, or both."""
    num_rows, num_columns = costs.shape
    steps = _steps(costs)
    row, column = num_rows - 1, num_columns - 1
    found = np.zeros(num_rows, np.intp)
    while row >= 0 and column >= 0:
        found[row] = column
        step = steps[row + column, row]
        row -= step != _LEFT
        column -= step != _UP
    return found


def _steps(costs: Floats) -> NDArray[np.int8]:
    """The last step of the cheapest path to each cell, as [row + column, row]: a diagonal of the
    table depends on the two diagonals before it alone."""
    num_rows, num_columns = costs.shape
    count = num_rows + num_columns - 1
    steps = np.zeros((count, num_rows), np.int8)
    infinite = np.float32(np.inf)
    # Number i + 1 is the cell of row i; number 0 is the edge before the first row.
    before, last = (np.full(num_rows + 1, infinite) for _ in range(2))
    before[0] = 0.0  # the cell before the first one
    flipped = costs[:, ::-1]
    for number in range(count):
        first, end = max(0, number - num_columns + 1), min(number + 1, num_rows)
        cells = flipped.diagonal(num_columns - 1 - number)
        diagonal, up, left = before[first:end], last[first:end], last[first + 1 : end + 1]
        is_diagonal = (diagonal < up) & (diagonal < left)
        is_up = (up < diagonal) & (up < left)  # otherwise left, even if the two are cheaper
        steps[number, first:end] = np.where(is_diagonal, _DIAGONAL, np.where(is_up, _UP, _LEFT))
        best = np.where(is_diagonal, diagonal, np.where(is_up, up, left))
        new = np.full(num_rows + 1, infinite)
        new[first + 1 : end + 1] = cells + best
        before, last = last, new
    return steps
