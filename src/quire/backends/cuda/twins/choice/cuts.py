"""The twin of `kernels/choice/cuts.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.twins.choice.tokens import ROUNDS, Row, keys_of, number_of, weights_of
from quire.backends.cuda.twins.numbers import Floats, Grid

Doubles = NDArray[np.float64]
_BINS = 16


def narrow(
    grid: Grid, logits: Floats, numbers: Doubles, tops: Floats, bins: Doubles, states: Doubles,
    allowed: NDArray[np.int32], width: int, num_rows: int, num_chunks: int, step: int, CUT: int,
    CHUNK: int, TILE: int, BUNCH: int,
) -> None:  # fmt: skip
    """Row by row."""
    del TILE, BUNCH
    size = num_rows * num_chunks * _BINS
    both = bins[: 2 * size].reshape(2, num_rows, num_chunks, _BINS)
    rows = Row.all(logits, numbers, tops, states, allowed, width, grid[0], num_chunks, CHUNK)
    for number, row in enumerate(rows):
        if not row.is_cut(CUT):
            continue
        digits = row.states[CUT].reshape(ROUNDS + 1, 4)
        if step:
            _find_digit(row, digits, both[(step + 1) % 2, number], step, CUT)
        if step < ROUNDS:
            both[step % 2, number] = _bins(row, int(digits[step, 0]) if step else 0, step, CUT)


def _find_digit(row: Row, digits: Doubles, filled: Doubles, step: int, cut: int) -> None:
    """Writes the state of a round, and after the last one the number of ties of each chunk."""
    totals = filled.sum(0)
    prefix, above, wanted, _ = digits[step - 1]
    if step == 1:
        prefix, above = 0, 0.0
        wanted = row.number[3] * totals.sum() if cut else row.number[4]
    reached = above + np.cumsum(totals[::-1])[::-1]
    own = np.flatnonzero((reached >= wanted) & (totals > 0))
    digit = int(own[-1] if len(own) else np.flatnonzero(totals)[0])
    above += totals[digit + 1 :].sum()
    digits[step, :3] = prefix * _BINS + digit, above, wanted
    if step == ROUNDS:
        limit = number_of(int(digits[step, 0]))
        one = float(weights_of(np.array([limit]), row.top, row.number[0])[0]) if cut else 1.0
        if one == 0:
            row.allowed[cut] = 1 << 30
            return
        ties = np.floor(filled[:, digit] / one + 0.5)
        most = max(1.0, np.ceil((wanted - above) / one)) - (np.cumsum(ties) - ties)
        row.allowed[cut] = np.clip(most, 0, 1 << 30)


def _bins(row: Row, prefix: int, step: int, cut: int) -> Doubles:
    """[chunks, digits]; the sums of the numbers whose keys begin with the known digits."""
    weights = row.weights(1) if cut else row.open(0).astype(np.float64)
    shifted = keys_of(row.x) >> (4 * (ROUNDS - 1 - step))
    weights = np.where(shifted // _BINS == prefix, weights, 0.0)
    chunks = np.arange(len(weights)) // row.chunk
    places = chunks * _BINS + shifted % _BINS
    found = np.zeros((int(chunks[-1]) + 1) * _BINS)
    np.add.at(found, places, weights)
    return found.reshape(-1, _BINS)
