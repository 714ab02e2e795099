"""How vLLM defines the distribution that a token is drawn from, written down a second time.

Independent of `quire.sampling`: tests compare the two. One row, in float64, nothing clever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.params import SamplingParams

Row = NDArray[np.float64]


@dataclass(frozen=True)
class History:
    """What a row's request has so far, and what the tokenizer made of its words."""

    prompt: Sequence[int]
    output: Sequence[int]
    bad_words: Sequence[Sequence[int]] = ()
    end_ids: Sequence[int] = ()
    """Tokens that `min_tokens` forbids."""


def processed(logits: Row, params: SamplingParams, history: History) -> Row:
    """Logits [V] over temperature, -inf for what cannot be drawn; of greedy ones those whose
    largest is chosen."""
    z, output = logits.astype(np.float64), list(history.output)
    if params.allowed_token_ids is not None:
        z[[token for token in range(len(z)) if token not in params.allowed_token_ids]] = -np.inf
    for *before, last in history.bad_words:
        if output[len(output) - len(before) :] == before:
            z[last] = -np.inf
    if len(output) < params.min_tokens:
        z[list(history.end_ids)] = -np.inf
    for token, bias in (params.logit_bias or {}).items():
        z[token] += bias
    for token in {*history.prompt, *output}:
        penalty = params.repetition_penalty
        z[token] = z[token] / penalty if z[token] > 0 else z[token] * penalty
    for token in set(output):
        z[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    if params.temperature == 0:
        return z
    z /= params.temperature
    p = probabilities(z)
    z[p < params.min_p * p.max()] = -np.inf
    best_first = np.argsort(-z, kind="stable")
    if params.top_k > 0:
        z[best_first[params.top_k :]] = -np.inf
    mass_before = np.cumsum(probabilities(z)[best_first]) - probabilities(z)[best_first]
    if params.top_p < 1:
        z[best_first[mass_before >= params.top_p]] = -np.inf
    return z


def probabilities(z: Row) -> Row:
    """Softmax."""
    p: Row = np.exp(z - z.max())
    return p / p.sum()
