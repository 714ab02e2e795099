"""The specification of how a token is chosen from a row of logits, in NumPy.

    0  a row that has a NaN, +inf or no finite logit is no distribution: nothing is chosen (0) or
       reported, and `not_finite` says so
    1  log-probabilities to report: log softmax of the raw logits
    2  add the row's bias (-inf forbids a token, inf all others)
    3  temperature 0: the largest, the lowest id among equals, and done
    4  p = softmax(logits / temperature), in float64
    5  min_p: keep p >= min_p * max(p)
    6  top_k: keep the k largest (among equals the lower id first)
    7  top_p: over what is left, keep the smallest set of the most likely (among equals the
       lower id first) whose mass reaches top_p of the rest's; at least one
    8  inverse CDF in order of token id over what is kept, at u(seed, counter)

u is counter-based: a function of (seed, counter) alone, so neither the batch nor a restart
changes a token. Called by the reference backend; native code mirrors it, and may differ only
where its rounding, of weights or of their sums, crosses a boundary.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.sampling.columns import SamplingColumns
from quire.sampling.records import Logprobs

_MASK = (1 << 64) - 1
Floats = NDArray[np.float64]


def splitmix64(x: int) -> int:
    """A mixing of 64 bits. Source: Steele, Lea, Flood 2014, "Fast Splittable PRNGs"."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def uniform(seed: int, counter: int) -> float:
    """u in [0, 1) with 53 random bits."""
    return (splitmix64(seed ^ splitmix64(counter)) >> 11) * 2.0**-53


def not_finite(logits: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which rows of raw logits [L, V] are no distribution: [L]."""
    is_finite: NDArray[np.bool_] = np.isfinite(logits.max(axis=1, initial=-np.inf))
    return ~is_finite


def sample(logits: NDArray[np.float32], columns: SamplingColumns) -> NDArray[np.int32]:
    """The chosen token of each row of raw logits [L, V], int32 [L]."""
    chosen = np.zeros(len(logits), np.int32)
    for row in np.flatnonzero(~not_finite(logits)).tolist():
        biased = _biased(logits[row].astype(np.float64), columns, row)
        temperature = float(columns.temperature[row])
        if temperature == 0:
            chosen[row] = np.argmax(biased)
            continue
        weights = _softmax_weights(biased / temperature)
        if columns.min_p is not None:
            weights[weights < float(columns.min_p[row]) * weights.max()] = 0.0
        if columns.top_k is not None:
            _keep_top_k(weights, int(columns.top_k[row]))
        if columns.top_p is not None:
            _keep_top_p(weights, float(columns.top_p[row]))
        u = uniform(int(columns.seeds[row]), int(columns.counters[row]))
        chosen[row] = _inverse_cdf(weights, u)
    return chosen


def _biased(logits: Floats, columns: SamplingColumns, row: int) -> Floats:
    if columns.bias_starts is not None:
        if columns.bias_ids is None or columns.bias_values is None:
            raise ValueError("bias_starts without bias_ids and bias_values")
        begin, end = columns.bias_starts[row], columns.bias_starts[row + 1]
        ids, values = columns.bias_ids[begin:end], columns.bias_values[begin:end]
        is_inf = np.isinf(values)
        # One by one: an id may stand twice in a row.
        np.add.at(logits, ids[~is_inf], values[~is_inf])
        logits[ids[is_inf]] = values[is_inf]
    return logits


def _softmax_weights(z: Floats) -> Floats:
    """exp(z - max(z)): probabilities up to a factor; all 1 where nothing is possible."""
    top = z.max()
    if np.isinf(top):
        equal_to_top: Floats = (z == top).astype(np.float64)
        return equal_to_top
    weights: Floats = np.exp(z - top)
    return weights


def _keep_top_k(weights: Floats, k: int) -> None:
    if not 0 < k < len(weights):
        return
    threshold = np.partition(weights, -k)[-k]
    keep = weights > threshold
    equals = np.flatnonzero(weights == threshold)
    keep[equals[: k - np.count_nonzero(keep)]] = True
    weights[~keep] = 0.0


def _keep_top_p(weights: Floats, top_p: float) -> None:
    if top_p >= 1:
        return
    ids = np.flatnonzero(weights)
    best_first = ids[np.argsort(-weights[ids], kind="stable")]
    mass = np.cumsum(weights[best_first])
    count = int(np.searchsorted(mass, top_p * mass[-1], side="left")) + 1
    weights[best_first[count:]] = 0.0


def _inverse_cdf(weights: Floats, u: float) -> int:
    ids = np.flatnonzero(weights)
    mass = np.cumsum(weights[ids])
    place = int(np.searchsorted(mass, u * mass[-1], side="right"))
    return int(ids[min(place, len(ids) - 1)])


def logprobs(
    logits: NDArray[np.float32], chosen: NDArray[np.int32], columns: SamplingColumns
) -> Logprobs | None:
    """Log-probabilities of raw logits [L, V], best first; None if no row asks for any.

    A row that asks for none, or is no distribution, has id -1 everywhere, log-probability 0 and
    rank 0.
    """
    wanted = columns.num_logprobs
    if wanted is None or wanted.size == 0 or wanted.max() < 0:
        return None
    rows, width = len(logits), int(wanted.max())
    found = Logprobs(
        token_ids=np.full((rows, width), -1, np.int32),
        logprobs=np.full((rows, width), -np.inf, np.float32),
        sampled=np.zeros(rows, np.float32),
        sampled_ranks=np.zeros(rows, np.int32),
    )
    for row in np.flatnonzero((wanted >= 0) & ~not_finite(logits)).tolist():
        count = int(wanted[row])
        values = logits[row].astype(np.float64)
        token = int(chosen[row])
        normal = values - _log_sum_exp(values)
        best = _best_ids(values, count)
        found.token_ids[row, : len(best)] = best
        found.logprobs[row, : len(best)] = normal[best]
        found.sampled[row] = normal[token]
        found.sampled_ranks[row] = 1 + np.count_nonzero(values > values[token])
    return found


def _log_sum_exp(values: Floats) -> float:
    top = values.max()
    return float(top + np.log(np.exp(values - top).sum()))


def _best_ids(values: Floats, count: int) -> NDArray[np.intp]:
    """The `count` largest, best first, the lower id first among equals."""
    count = min(count, len(values))
    if count == 0:
        return np.empty(0, np.intp)
    threshold = np.partition(values, -count)[-count]
    candidates = np.flatnonzero(values >= threshold)
    return candidates[np.argsort(-values[candidates], kind="stable")][:count]
