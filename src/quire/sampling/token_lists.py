"""`TokenLists`: a list of tokens for each row of a batch. Legend: L rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.errors import BackendError

Tokens = NDArray[np.int32]


@dataclass(slots=True)
class TokenLists:
    """A list of tokens for each row: row l has ids[starts[l] : starts[l + 1]]."""

    starts: NDArray[np.int32]
    """[L + 1]"""
    ids: NDArray[np.int32]
    """[starts[-1]]"""
    values: NDArray[np.float32] | None = None
    """[starts[-1]]; one number per token, if the list has numbers."""

    @classmethod
    def join(cls, rows: Sequence[tuple[Tokens, NDArray[np.float32] | None] | None]) -> TokenLists:
        """Build the lists from the ids and numbers of each row; None: the row has no tokens."""
        starts = np.zeros(len(rows) + 1, np.int32)
        np.cumsum([0 if row is None else len(row[0]) for row in rows], out=starts[1:])
        ids = [row[0] for row in rows if row is not None]
        values = [row[1] for row in rows if row is not None and row[1] is not None]
        return cls(
            starts,
            np.concatenate(ids) if ids else np.empty(0, np.int32),
            np.concatenate(values) if values else None,
        )

    def take(self, rows: NDArray[np.int32]) -> TokenLists:
        """Return the lists of these rows, in the given order."""
        places = [self.of_row(row) for row in rows.tolist()]
        return TokenLists.join(
            [
                (self.ids[place], None if self.values is None else self.values[place])
                for place in places
            ]
        )

    def of_row(self, row: int) -> slice:
        """Return the slice of `ids` that belongs to a row."""
        return slice(int(self.starts[row]), int(self.starts[row + 1]))

    def check(self, name: str, num_rows: int, *, has_values: bool) -> None:
        """Raises BackendError unless the arrays are consistent and have `num_rows` rows."""
        if len(self.starts) != num_rows + 1 or self.starts.dtype != np.int32:
            raise misshapen(f"{name}.starts", self.starts, np.int32, num_rows + 1)
        lengths = {len(self.ids), len(self.ids if self.values is None else self.values)}
        if lengths != {int(self.starts[-1])} or has_values != (self.values is not None):
            raise BackendError(f"sampling column {name} must be as long as its starts say")
        number = np.dtype(np.float32) if self.values is None else self.values.dtype
        if self.ids.dtype != np.int32 or number != np.float32:
            raise BackendError(
                f"sampling column {name} must be int32 with float32, not {self.ids.dtype}, {number}"
            )


def misshapen(
    name: str, array: NDArray[Any], dtype: type[np.generic], num_rows: int
) -> BackendError:
    """The error of an array that has another type or number of rows than declared."""
    if len(array) != num_rows:
        return BackendError(f"sampling column {name} must have {num_rows} rows, not {len(array)}")
    return BackendError(f"sampling column {name} must be {dtype.__name__}, not {array.dtype}")
