"""What a backend is told of sampling and what it reports: `SamplingColumns` and `Logprobs`.

Arrays only, one entry per row of logits. Legend: L rows that need logits, K log-probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class SamplingColumns:
    """How to choose a token from each of the L logits rows; `None` columns mean the neutral value.

    The semantics (order, ties, random numbers) are those of `quire.sampling.reference`.
    """

    temperature: NDArray[np.float32]
    """[L]; 0 is greedy (the lowest id among equals)."""
    top_k: NDArray[np.int32] | None
    """[L]; 0 is off."""
    top_p: NDArray[np.float32] | None
    """[L]; 1 is off."""
    min_p: NDArray[np.float32] | None
    """[L]; 0 is off."""
    seeds: NDArray[np.uint64]
    """[L]; the random number is a function of (seed, counter) alone."""
    counters: NDArray[np.uint64]
    """[L]; the absolute position of the token being chosen."""
    bias_starts: NDArray[np.int32] | None = None
    """[L + 1]; with s, e = bias_starts[l:l+2], row l adds bias_values[s:e] to its logits at
    bias_ids[s:e] before anything else but the raw logprobs; -inf forbids a token, inf all
    others."""
    bias_ids: NDArray[np.int32] | None = None
    bias_values: NDArray[np.float32] | None = None
    num_logprobs: NDArray[np.int32] | None = None
    """[L]; how many of the best tokens to report for the row; -1: not even the chosen one's."""


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
