"""`GivenRows`: the rows that requests give in place of embeddings, and those of a step.

Called by `InputBatch`, which numbers its requests by rows of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import TokenRows
from quire.errors import IntegrityError
from quire.protocol.input_rows import InputRows, are_apart

Floats = NDArray[np.float32]
FindRows = Callable[[InputRows], Floats]
"""Returns the rows [count, width] of an `InputRows` that has no data."""


def rows_are_missing(given: InputRows) -> Floats:
    """Raises IntegrityError: for workers that have no rows of their own."""
    raise IntegrityError(f"the worker has no input rows with the digest {given.digest.hex()}")


@dataclass(slots=True)
class StepRows:
    """The given rows of a step's tokens."""

    embeddings: list[TokenRows] = field(default_factory=list)
    kv: list[TokenRows] = field(default_factory=list)


class GivenRows:
    """Rows by the number of their request."""

    def __init__(self, find: FindRows = rows_are_missing) -> None:
        self._find = find
        self._of: dict[int, list[InputRows]] = {}

    def set(self, number: int, given: list[InputRows], num_tokens: int) -> None:
        """Takes the rows of a request that starts with `num_tokens` tokens."""
        if given:
            if not are_apart(given, num_tokens):
                raise IntegrityError("input rows overlap, or lie outside the prompt")
            self._of[number] = given

    def clear(self, number: int) -> None:
        """Forgets a request."""
        self._of.pop(number, None)

    def of_step(
        self, numbers: Sequence[int], starts: Sequence[int], computed: Sequence[int]
    ) -> StepRows:
        """The rows of a step, whose request i computes tokens from `computed[i]` on, which are
        tokens `starts[i]` to `starts[i + 1] - 1` of the step."""
        found = StepRows()
        if not self._of:
            return found
        for index, number in enumerate(numbers):
            first, shift = computed[index], starts[index] - computed[index]
            end = starts[index + 1] - shift
            for given in self._of.get(number, ()):
                low, high = max(first, given.first), min(end, given.end)
                if low < high:
                    rows = self._array(given)[low - given.first : high - given.first]
                    of_kind = found.kv if given.kind == "kv" else found.embeddings
                    of_kind.append(TokenRows(low + shift, rows))
        return found

    def _array(self, given: InputRows) -> Floats:
        if not given.data:
            return self._find(given)
        return np.frombuffer(given.data, "<f4").reshape(given.count, -1)
