"""`SamplingColumns` from a list of rows, for tests. A column neutral in every row is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.sampling.columns import COLUMNS, Column, SamplingColumns
from quire.sampling.token_lists import TokenLists

_MASK = (1 << 64) - 1
_INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """How one row chooses its next token. Neutral values are the defaults."""

    temperature: float = 0.0
    top_k: int = 0
    """0 or less is off."""
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    position: int = 0
    """Absolute position of the token being chosen: with the seed it decides the random number."""
    banned_token_ids: Sequence[int] = ()
    """Forbidden at this position (`min_tokens` not reached yet)."""
    num_logprobs: int | None = None
    """None: not even the chosen token's."""


def build_columns(rows: Sequence[SamplingRow]) -> SamplingColumns:
    """The columns for L rows, in their order."""
    arrays: dict[str, Any] = {}
    for name, column in COLUMNS.items():
        values = [_value(row, name, column) for row in rows]
        if column.neutral is None or any(value != column.neutral for value in values):
            arrays[name] = np.array(values, column.dtype)
    columns = SamplingColumns(**arrays)
    if any(row.banned_token_ids for row in rows):
        columns.bias = TokenLists.join([_ban(row.banned_token_ids) for row in rows])
    return columns


def _ban(ids: Sequence[int]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    return np.array(ids, np.int32), np.full(len(ids), -np.inf, np.float32)


def _value(row: SamplingRow, name: str, column: Column) -> Any:
    if name == "seeds":
        return row.seed & _MASK
    if name == "counters":
        return row.position
    if name == "num_logprobs" and row.num_logprobs is None:
        return -1
    value = getattr(row, name, column.neutral)
    return min(max(value, 0), _INT32_MAX) if name == "top_k" else value
