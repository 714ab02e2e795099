"""`Logprobs`: what sampling reports in addition to the chosen tokens.

Arrays with one entry per row of logits. Legend: L rows that need logits, K log-probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class Logprobs:
    """Log-probabilities or logits, depending on the row's `logprobs_kind`, of the best tokens or of
    those in `reported`. Rows with fewer than K are padded with id -1."""

    token_ids: NDArray[np.int32]
    """[L, K]"""
    logprobs: NDArray[np.float32]
    """[L, K]"""
    ranks: NDArray[np.int32]
    """[L, K]; 1, 2, ... for the best tokens; for listed tokens as in `sampled_ranks`."""
    sampled: NDArray[np.float32]
    """[L]; value of the chosen token."""
    sampled_ranks: NDArray[np.int32]
    """[L]; 1 + the number of tokens that are strictly more likely."""

    @classmethod
    def empty(cls, rows: int, width: int) -> Logprobs:
        """Return empty records: id -1, log-probability minus infinity, and 0 for the chosen
        tokens."""
        return cls(
            token_ids=np.full((rows, width), -1, np.int32),
            logprobs=np.full((rows, width), -np.inf, np.float32),
            ranks=np.zeros((rows, width), np.int32),
            sampled=np.zeros(rows, np.float32),
            sampled_ranks=np.zeros(rows, np.int32),
        )
