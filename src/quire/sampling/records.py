"""`Logprobs`: what a backend reports of sampling, beside the chosen tokens.

Arrays only, one entry per row of logits. Legend: L rows that need logits, K log-probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class Logprobs:
    """Log-probabilities, or logits, as the row's `logprobs_kind` says: of the best tokens, or of
    those that `reported` lists. Rows shorter than K are padded: id -1."""

    token_ids: NDArray[np.int32]
    """[L, K]"""
    logprobs: NDArray[np.float32]
    """[L, K]"""
    ranks: NDArray[np.int32]
    """[L, K]; the best tokens' are 1, 2, ..., a listed token's as `sampled_ranks`."""
    sampled: NDArray[np.float32]
    """[L]; of the chosen token."""
    sampled_ranks: NDArray[np.int32]
    """[L]; 1 + how many tokens are strictly more likely."""

    @classmethod
    def empty(cls, rows: int, width: int) -> Logprobs:
        """Nothing reported: id -1, log-probability minus infinity, and 0 for the chosen tokens."""
        return cls(
            token_ids=np.full((rows, width), -1, np.int32),
            logprobs=np.full((rows, width), -np.inf, np.float32),
            ranks=np.zeros((rows, width), np.int32),
            sampled=np.zeros(rows, np.float32),
            sampled_ranks=np.zeros(rows, np.int32),
        )
