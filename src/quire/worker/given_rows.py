"""`GivenRows`: the rows that requests give in place of embeddings, and those of a step.

Called by `InputBatch`, which numbers its requests by rows of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quire.backends.records import TokenRows
from quire.errors import IntegrityError
from quire.program import MAX_AXES
from quire.protocol.input_rows import InputRows, are_apart

Floats = NDArray[np.float32]
FindRows = Callable[[InputRows], Floats]
"""Returns the rows [count, width] of an `InputRows` that has no data."""


def rows_are_missing(given: InputRows) -> Floats:
    """Raises IntegrityError: for workers that have no rows of their own."""
    raise IntegrityError(f"the worker has no input rows with the digest {given.digest.hex()}")


def spans_of(begin: int, end: int, given: Sequence[InputRows]) -> NDArray[np.int32]:
    """[2, end - begin]; the first and the last position of the span of each token from `begin` on.
    What of a span is before `begin` is left out: every token sees it anyway."""
    found = np.tile(np.arange(begin, end, dtype=np.int32), (2, 1))
    for one in given:
        low, high = max(one.first, begin), min(one.end, end)
        if one.is_span and low < high:
            found[:, low - begin : high - begin] = [[low], [high - 1]]
    return found


def axis_positions(begin: int, end: int, given: Sequence[InputRows]) -> NDArray[np.int32]:
    """[end - begin, 3]; the positions of a request's tokens from `begin` on. A token has three
    equal ones. A row of a picture has the picture's, and its own places in the grid added to it.
    After a picture, positions go on as if it had as many tokens as its longer side. A video is
    several pictures, which have positions on the axis of time, too, and may be longest there.

    Source: Wang et al. 2024, "Qwen2-VL", section 2.1; transformers, `get_rope_index`.
    """
    found = np.repeat(np.arange(begin, end, dtype=np.int32)[:, None], MAX_AXES, axis=1)
    for one in given:
        if one.grid is None or one.first >= end:
            continue
        tiles, places_of_tile = divmod(np.arange(one.count), one.grid[0] * one.grid[1])
        times = (tiles * one.tile_distance).astype(np.intp)
        found[max(one.end - begin, 0) :] -= one.count - max(*one.grid, int(times[-1]) + 1)
        low, high = max(one.first, begin), min(one.end, end)
        if low < high:
            places = np.stack([times, *divmod(places_of_tile, one.grid[1])])
            own = places[:, low - one.first : high - one.first].T
            found[low - begin : high - begin] += (
                own - np.arange(low - one.first, high - one.first)[:, None]
            )
    return found


@dataclass(slots=True)
class StepRows:
    """The given rows of a step's tokens."""

    embeddings: list[TokenRows] = field(default_factory=list)
    kv: list[TokenRows] = field(default_factory=list)
    axis_positions: NDArray[np.int32] | None = None
    """[T, 3]; None: no request of the step has pictures whose rows have positions by place."""
    spans: NDArray[np.int32] | None = None
    """[2, T]; None: no request of the step has rows that see each other."""


class GivenRows:
    """Rows by the number of their request."""

    def __init__(self, find: FindRows = rows_are_missing) -> None:
        self._find = find
        self.by_number: dict[int, list[InputRows]] = {}
        """Rows of the requests that have any."""

    def set(self, number: int, given: list[InputRows], num_tokens: int) -> None:
        """Takes the rows of a request that starts with `num_tokens` tokens."""
        if not are_apart(given, num_tokens):
            raise IntegrityError("input rows overlap, or lie outside the prompt")
        self.by_number[number] = given

    def of_step(
        self, numbers: Sequence[int], starts: Sequence[int], computed: Sequence[int]
    ) -> StepRows:
        """The rows of a step, whose request i computes tokens from `computed[i]` on, which are
        tokens `starts[i]` to `starts[i + 1] - 1` of the step."""
        found = StepRows()
        for index, number in enumerate(numbers):
            first, shift = computed[index], starts[index] - computed[index]
            end = starts[index + 1] - shift
            for given in self.by_number.get(number, ()):
                low, high = max(first, given.first), min(end, given.end)
                if low < high:
                    rows = self._array(given)[low - given.first : high - given.first]
                    of_kind = found.kv if given.kind == "kv" else found.embeddings
                    of_kind.append(TokenRows(low + shift, rows))
        requests = [
            (first, first + end - begin, self.by_number.get(number, ()))
            for number, first, (begin, end) in zip(
                numbers, computed, itertools.pairwise(starts), strict=True
            )
        ]
        if any(one.grid is not None for _, _, given in requests for one in given):
            found.axis_positions = np.concatenate([axis_positions(*one) for one in requests])
        if any(one.is_span for _, _, given in requests for one in given):
            found.spans = np.concatenate([spans_of(*one) for one in requests], axis=1)
        return found

    def _array(self, given: InputRows) -> Floats:
        if not given.data:
            return self._find(given)
        return np.frombuffer(given.data, "<f4").reshape(given.count, -1)
