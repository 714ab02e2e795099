"""`SamplingColumns` from a list of rows, for tests. A column neutral in every row is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quire.sampling import SamplingColumns

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
    columns = SamplingColumns(
        temperature=np.array([row.temperature for row in rows], np.float32),
        top_k=None,
        top_p=None,
        min_p=None,
        seeds=np.array([row.seed & _MASK for row in rows], np.uint64),
        counters=np.array([row.position for row in rows], np.uint64),
    )
    if any(row.top_k > 0 for row in rows):
        columns.top_k = np.array([min(max(row.top_k, 0), _INT32_MAX) for row in rows], np.int32)
    if any(row.top_p < 1 for row in rows):
        columns.top_p = np.array([row.top_p for row in rows], np.float32)
    if any(row.min_p > 0 for row in rows):
        columns.min_p = np.array([row.min_p for row in rows], np.float32)
    if any(row.num_logprobs is not None for row in rows):
        counts = [-1 if row.num_logprobs is None else row.num_logprobs for row in rows]
        columns.num_logprobs = np.array(counts, np.int32)
    if any(row.banned_token_ids for row in rows):
        _ban(columns, rows)
    return columns


def _ban(columns: SamplingColumns, rows: Sequence[SamplingRow]) -> None:
    lengths = [len(row.banned_token_ids) for row in rows]
    banned = [token for row in rows for token in row.banned_token_ids]
    columns.bias_starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    columns.bias_ids = np.array(banned, np.int32)
    columns.bias_values = np.full(len(banned), -np.inf, np.float32)
