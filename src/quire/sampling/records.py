"""`Logprobs`: what a backend reports of sampling, beside the chosen tokens.

Arrays only, one entry per row of logits. Legend: L rows that need logits, K log-probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class Logprobs:
    """Log-probabilities of the raw logits, best first. Rows shorter than K are padded: id -1."""

    token_ids: NDArray[np.int32]
    """[L, K]"""
    logprobs: NDArray[np.float32]
    """[L, K]"""
    sampled: NDArray[np.float32]
    """[L]; of the chosen token."""
    sampled_ranks: NDArray[np.int32]
    """[L]; 1 + how many tokens are strictly more likely."""
