"""The twins of `kernels/choice/tokens.py`; `Row` is a row that several of them read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.choices import FIELDS
from quire.backends.cuda.twins.numbers import Floats, Grid, rows_of

Doubles = NDArray[np.float64]
Integers = NDArray[np.int32]
Keys = NDArray[np.int64]

ROUNDS, STATE = 8, 36


def keys_of(x: Floats) -> Keys:
    """Whole numbers in the order of the numbers."""
    bits = np.where(x == 0, np.float32(0), x).view(np.int32)
    return np.where(bits < 0, bits ^ 0x7FFFFFFF, bits).astype(np.int64) + 2**31


def number_of(key: int) -> np.float32:
    """The number of a key."""
    bits = np.int32(key - 2**31)
    found: np.float32 = bits.view(np.float32) if bits >= 0 else (bits ^ 0x7FFFFFFF).view(np.float32)
    return found


def weights_of(x: Floats, top: np.float32, temperature: float) -> Doubles:
    """Probabilities up to a factor."""
    z, most = x.astype(np.float64) / temperature, float(top) / temperature
    return np.where(z == most, 1.0, np.exp(z - most))


@dataclass(frozen=True, slots=True)
class Row:
    """A row with what belongs to it."""

    x: Floats
    number: Doubles
    top: np.float32
    states: Doubles
    """[2, STATE]"""
    allowed: Integers
    """[2, chunks]"""
    chunk: int

    @classmethod
    def all(
        cls, logits: Floats, numbers: Doubles, tops: Floats, states: Doubles, allowed: Integers,
        width: int, count: int, num_chunks: int, chunk: int,
    ) -> list[Row]:  # fmt: skip
        """The rows of a launch."""
        return [
            cls(
                logits[row * width : (row + 1) * width],
                numbers[row * FIELDS : (row + 1) * FIELDS],
                tops[row * num_chunks : (row + 1) * num_chunks].max(),
                states[row * 2 * STATE : (row + 1) * 2 * STATE].reshape(2, STATE),
                allowed[row * 2 * num_chunks : (row + 1) * 2 * num_chunks].reshape(2, -1),
                chunk,
            )
            for row in range(count)
        ]

    def is_cut(self, cut: int) -> bool:
        """Whether it has top_k (0) or top_p (1)."""
        wants = self.number[3] < 1 if cut else self.number[4] > 0
        return bool(self.number[0] > 0 and wants)

    def open(self, cuts: int) -> NDArray[np.bool_]:
        """Which tokens min_p and the first `cuts` limits keep."""
        found: NDArray[np.bool_]
        found = weights_of(self.x, self.top, self.number[0]) >= self.number[2]
        keys = keys_of(self.x)
        for cut in range(cuts):
            if not self.is_cut(cut):
                continue
            limit = int(self.states[cut, 4 * ROUNDS])
            for number, first in enumerate(range(0, len(keys), self.chunk)):
                own = slice(first, first + self.chunk)
                is_tie = found[own] & (keys[own] == limit)
                is_first = is_tie & (np.cumsum(is_tie) <= self.allowed[cut, number])
                found[own] &= (keys[own] > limit) | is_first
        return found

    def weights(self, cuts: int) -> Doubles:
        """The weights of the tokens that may be chosen."""
        return np.where(self.open(cuts), weights_of(self.x, self.top, self.number[0]), 0.0)


def survey(
    grid: Grid, logits: Floats, tops: Floats, firsts: Integers, width: int, num_chunks: int,
    CHUNK: int, TILE: int,
) -> None:  # fmt: skip
    """Chunk by chunk."""
    del TILE
    rows = rows_of(logits, grid[0], width, width)
    for chunk in range(num_chunks):
        part = rows[:, chunk * CHUNK : (chunk + 1) * CHUNK]
        rows_of(tops, grid[0], num_chunks, num_chunks)[:, chunk] = part.max(1)
        places = np.where(np.isnan(part), -np.inf, part).argmax(1) + chunk * CHUNK
        rows_of(firsts, grid[0], num_chunks, num_chunks)[:, chunk] = places


def forbid(
    grid: Grid, logits: Floats, numbers: Doubles, masks: Integers, width: int, num_words: int,
    CHUNK: int, TILE: int,
) -> None:  # fmt: skip
    """Row by row."""
    del CHUNK, TILE
    for row, number in zip(
        rows_of(logits, grid[0], width, width), rows_of(numbers, grid[0], FIELDS, FIELDS),
        strict=True,
    ):  # fmt: skip
        if (mask := int(number[10])) >= 0:
            words = masks[mask * num_words : (mask + 1) * num_words]
            row[np.unpackbits(words.view(np.uint8), bitorder="little")[:width] == 0] = -np.inf


def change(
    grid: Grid, logits: Floats, numbers: Doubles, starts: Integers, ids: Integers, values: Floats,
    width: int, OP: int, TILE: int,
) -> None:  # fmt: skip
    """Row by row."""
    del TILE
    for row in range(grid[0]):
        own = slice(starts[row], starts[row + 1])
        target, value = logits[row * width : (row + 1) * width], values[own]
        x = target[ids[own]]
        if OP == 0:
            x = x + value
        else:
            number = numbers[row * FIELDS : (row + 1) * FIELDS].astype(np.float32)
            shrink, grow, frequency, presence = number[6:10]
            x = x * np.where(x > 0, shrink, grow)
            x = x - frequency * value
            x = x - np.where(value > 0, presence, np.float32(0))
        target[ids[own]] = x


def weigh(
    grid: Grid, logits: Floats, numbers: Doubles, tops: Floats, states: Doubles,
    allowed: Integers, sums: Doubles, width: int, num_chunks: int, CUTS: int, CHUNK: int,
    TILE: int, BUNCH: int,
) -> None:  # fmt: skip
    """Row by row."""
    del TILE, BUNCH
    rows = Row.all(logits, numbers, tops, states, allowed, width, grid[0], num_chunks, CHUNK)
    for row, found in zip(rows, rows_of(sums, grid[0], num_chunks, num_chunks), strict=True):
        if row.number[0] > 0:
            found[:] = np.add.reduceat(row.weights(CUTS), np.arange(num_chunks) * CHUNK)


def draw(
    grid: Grid, logits: Floats, numbers: Doubles, raw_tops: Floats, tops: Floats,
    firsts: Integers, states: Doubles, allowed: Integers, sums: Doubles, out: Integers,
    kept: Integers, width: int, num_chunks: int, CUTS: int, CHUNK: int, TILE: int, BUNCH: int,
) -> None:  # fmt: skip
    """Row by row."""
    del TILE, BUNCH
    rows = Row.all(logits, numbers, tops, states, allowed, width, grid[0], num_chunks, CHUNK)
    raw = rows_of(raw_tops, grid[0], num_chunks, num_chunks).max(1)
    for number, row in enumerate(rows):
        token, status = 0, 2 * int(row.top == -np.inf)
        if not np.isfinite(raw[number]):
            status = 1
        if status == 0 and row.number[0] > 0:
            own = sums[number * num_chunks : (number + 1) * num_chunks]
            token = _drawn(row.weights(CUTS), own, row.number[1], CHUNK)
        elif status == 0:
            part = slice(number * num_chunks, (number + 1) * num_chunks)
            token = int(firsts[part][tops[part] == row.top].min())
        out[2 * number : 2 * number + 2] = token, status
        if (place := int(row.number[5])) >= 0:
            kept[place] = token


def _drawn(weights: Doubles, sums: Doubles, random: float, size: int) -> int:
    ends = np.cumsum(sums)
    wanted = random * ends[-1]
    last = int(np.flatnonzero(sums)[-1])
    chunk = min(int(np.count_nonzero(ends <= wanted)), last)
    before = ends[chunk - 1] if chunk else 0.0
    part = weights[chunk * size : (chunk + 1) * size]
    reached = np.flatnonzero((part > 0) & (before + np.cumsum(part) > wanted))
    return chunk * size + int(reached[0] if len(reached) else np.flatnonzero(part)[-1])


def feed(
    grid: Grid, token_ids: Integers, places: Integers, kept: Integers, num_tokens: int, BLOCK: int
) -> None:
    """All at once."""
    del grid, BLOCK
    own = np.flatnonzero(places[:num_tokens] >= 0)
    token_ids[own] = kept[places[own]]
