"""Specification, in NumPy, of how a token is chosen from a row of logits.

    0  a row with a NaN, +inf or no finite logit is invalid: nothing is chosen (0) or
       reported, and `not_finite` is True for it
    1  forbid the tokens outside `mask`, if the row has one: their logits are -inf in all
       later steps; then, with m = `mass_from`, those before m if the logarithm of the sum of
       the exponentials of the logits from m on exceeds each logit before m; a row with a
       token in `chosen` has neither
    2  report raw logits: their log softmax, or the logits; a row with a token in `chosen`
       ends here
    3  in float32: forbid all tokens but those of `allowed`, if the row has any; add `bias`; for
       the `seen` tokens apply the repetition, frequency and presence penalties. If all tokens
       of a row are forbidden then, nothing is chosen (0) or reported, and `no_choice`
       is True for it
    4  temperature 0: choose the largest logit (the lowest id among equals) and stop
    5  p = softmax(logits / temperature), in float64
    6  min_p: keep p >= min_p * max(p)
    7  top_k: keep the k largest (among equals the lower id first)
    8  top_p: of the remaining tokens, keep the smallest set of the most likely (among equals the
       lower id first) whose mass reaches top_p of their total mass; at least one
    9  report processed logits: logits / temperature, -inf where steps 6 to 8 dropped a
       token, or their log softmax; with temperature 0 the logits of step 3
   10  choose by inverse CDF over the kept tokens in order of id, at u(seed, counter)

Custom logits processors run where vLLM runs them. Those that may change the argmax run in step 3,
between `bias` and the penalties; argmax-invariant ones run in step 5, on logits / temperature of
rows whose temperature is not 0. Two things differ from vLLM. min_p runs after the argmax-invariant
processors, because steps 6 to 8 are one pass of native code. The mask is applied after them too,
because a grammar cannot continue after a token that it forbids.

The random number u is a function of (seed, counter) alone, so neither the batch nor a restart
changes a token. The reference backend calls this module. Native code does the same and may differ
only where its rounding of weights or of their sums crosses a boundary.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.sampling.columns import LOGPROBS_KINDS, SamplingColumns
from quire.sampling.records import Logprobs
from quire.sampling.token_lists import TokenLists

_MASK = (1 << 64) - 1
_LOGITS = {LOGPROBS_KINDS["raw_logits"], LOGPROBS_KINDS["processed_logits"]}
_PROCESSED = {LOGPROBS_KINDS["processed_logprobs"], LOGPROBS_KINDS["processed_logits"]}
Floats = NDArray[np.float64]


def splitmix64(x: int) -> int:
    """Mix 64 bits. Source: Steele, Lea, Flood 2014, "Fast Splittable PRNGs"."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def uniform(seed: int, counter: int) -> float:
    """Return u in [0, 1) with 53 random bits."""
    return (splitmix64(seed ^ splitmix64(counter)) >> 11) * 2.0**-53


def not_finite(logits: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which rows of raw logits [L, V] are invalid: [L]."""
    is_finite: NDArray[np.bool_] = np.isfinite(logits.max(axis=1, initial=-np.inf))
    return ~is_finite


def no_choice(logits: NDArray[np.float32], columns: SamplingColumns) -> NDArray[np.bool_]:
    """Return which rows of raw logits [L, V] have no token to choose: [L]."""
    found = np.zeros(len(logits), np.bool_)
    for row in np.flatnonzero(~not_finite(logits)).tolist():
        if columns.chosen is None or columns.chosen[row] < 0:
            found[row] = adjust(logits[row], columns, row).max() == -np.inf
    return found


def sample(logits: NDArray[np.float32], columns: SamplingColumns) -> NDArray[np.int32]:
    """Return the chosen token of each row of raw logits [L, V]: int32 [L]."""
    chosen = np.zeros(len(logits), np.int32)
    for row in np.flatnonzero(~not_finite(logits)).tolist():
        if columns.chosen is not None and columns.chosen[row] >= 0:
            chosen[row] = columns.chosen[row]
            continue
        adjusted = adjust(logits[row], columns, row).astype(np.float64)
        if adjusted.max() == -np.inf:
            continue
        temperature = float(columns.temperature[row])
        if temperature == 0:
            chosen[row] = np.argmax(adjusted)
            continue
        scaled = adjusted / temperature
        weights = _softmax_weights(scaled)
        weights[~_kept(scaled, weights, columns, row)] = 0.0
        u = uniform(int(columns.seeds[row]), int(columns.counters[row]))
        chosen[row] = _inverse_cdf(weights, u)
    return chosen


def masked(logits: NDArray[np.float32], columns: SamplingColumns, row: int) -> NDArray[np.float32]:
    """Return a copy of the row's logits [V] after step 1."""
    left: NDArray[np.float32] = logits.copy()
    allowed = None if columns.mask is None else columns.mask.allows(row, len(logits))
    if allowed is not None:
        left[~allowed] = -np.inf
    first = -1 if columns.mass_from is None else int(columns.mass_from[row])
    if first >= 0 and _log_sum(left[first:]) > left[:first].max(initial=-np.inf):
        left[:first] = -np.inf
    return left


def _log_sum(logits: NDArray[np.float32]) -> float:
    """Return the logarithm of the sum of the exponentials."""
    top = float(logits.max(initial=-np.inf))
    if np.isinf(top):
        return top
    return top + float(np.log(np.exp(logits.astype(np.float64) - top).sum()))


def adjust(logits: NDArray[np.float32], columns: SamplingColumns, row: int) -> NDArray[np.float32]:
    """Return the logits [V] from which the row's token is chosen: steps 1 and 3."""
    return penalise(restrict(logits, columns, row), columns, row)


def restrict(
    logits: NDArray[np.float32], columns: SamplingColumns, row: int
) -> NDArray[np.float32]:
    """Return a copy of the row's logits [V] after `mask`, `allowed` and `bias`."""
    adjusted = masked(logits, columns, row)
    if columns.allowed is not None:
        allowed = columns.allowed.ids[columns.allowed.of_row(row)]
        if len(allowed):
            left = adjusted[allowed]
            adjusted.fill(-np.inf)
            adjusted[allowed] = left
    if columns.bias is not None and columns.bias.values is not None:
        place = columns.bias.of_row(row)
        # np.add.at adds one by one, because an id may occur twice in a row.
        np.add.at(adjusted, columns.bias.ids[place], columns.bias.values[place])
    return adjusted


def penalise(
    logits: NDArray[np.float32], columns: SamplingColumns, row: int
) -> NDArray[np.float32]:
    """Apply the penalties to the row's logits [V] in place and return them."""
    if columns.seen is not None and columns.seen.values is not None:
        place = columns.seen.of_row(row)
        ids, counts = columns.seen.ids[place], columns.seen.values[place]
        logits[ids] = _penalised(logits[ids], counts, columns, row)
    return logits


def _penalised(
    logits: NDArray[np.float32], counts: NDArray[np.float32], columns: SamplingColumns, row: int
) -> NDArray[np.float32]:
    if columns.repetition_penalty is not None:
        penalty = columns.repetition_penalty[row]
        with np.errstate(over="ignore"):
            logits = logits * np.where(logits > 0, np.float32(1) / penalty, penalty)
    if columns.frequency_penalty is not None:
        logits = logits - columns.frequency_penalty[row] * counts
    if columns.presence_penalty is not None:
        logits = logits - np.where(counts > 0, columns.presence_penalty[row], np.float32(0))
    return logits


def _softmax_weights(z: Floats) -> Floats:
    """Return exp(z - max(z)): probabilities up to a factor. If max(z) is infinite, 1 at the maxima
    and 0 elsewhere."""
    top = z.max()
    if np.isinf(top):
        equal_to_top: Floats = (z == top).astype(np.float64)
        return equal_to_top
    weights: Floats = np.exp(z - top)
    return weights


def _kept(scaled: Floats, weights: Floats, columns: SamplingColumns, row: int) -> NDArray[np.bool_]:
    """Return which tokens [V] may be chosen, given logits / temperature and weights: steps 6 to
    8."""
    kept = np.ones(len(weights), np.bool_)
    if columns.min_p is not None:
        kept &= weights >= float(columns.min_p[row]) * weights.max()
    if columns.top_k is not None:
        _keep_top_k(kept, scaled, int(columns.top_k[row]))
    if columns.top_p is not None:
        _keep_top_p(kept, weights, float(columns.top_p[row]))
    return kept


def _keep_top_k(kept: NDArray[np.bool_], scaled: Floats, k: int) -> None:
    """Compare logits, not weights: at a low temperature the weights of many tokens are 0."""
    if not 0 < k < np.count_nonzero(kept):
        return
    left = np.where(kept, scaled, -np.inf)
    threshold = np.partition(left, -k)[-k]
    equals = np.flatnonzero(left == threshold)
    kept[left <= threshold] = False
    kept[equals[: k - np.count_nonzero(kept)]] = True


def _keep_top_p(kept: NDArray[np.bool_], weights: Floats, top_p: float) -> None:
    if top_p >= 1:
        return
    ids = np.flatnonzero(kept)
    best_first = ids[np.argsort(-weights[ids], kind="stable")]
    mass = np.cumsum(weights[best_first])
    count = int(np.searchsorted(mass, top_p * mass[-1], side="left")) + 1
    kept[best_first[count:]] = False


def _inverse_cdf(weights: Floats, u: float) -> int:
    ids = np.flatnonzero(weights)
    mass = np.cumsum(weights[ids])
    place = int(np.searchsorted(mass, u * mass[-1], side="right"))
    return int(ids[min(place, len(ids) - 1)])


def logprobs(
    logits: NDArray[np.float32], chosen: NDArray[np.int32], columns: SamplingColumns
) -> Logprobs | None:
    """Return what is reported for logits [L, V], best first; None if no row asks for it.

    Rows that ask for nothing, are invalid or have no choice have id -1 everywhere, log-probability
    0 and rank 0.
    """
    wanted = columns.num_logprobs
    if wanted is None or wanted.size == 0 or wanted.max() < 0:
        return None
    found = Logprobs.empty(len(logits), int(wanted.max()))
    is_void = not_finite(logits) | no_choice(logits, columns)
    for row in np.flatnonzero((wanted >= 0) & ~is_void).tolist():
        values, token = _values(logits, columns, row), int(chosen[row])
        is_logits = columns.logprobs_kind is not None and columns.logprobs_kind[row] in _LOGITS
        shown = values if is_logits else _log_softmax(values)
        ids = _best_ids(values, int(wanted[row])).tolist()
        ranks = list(range(1, 1 + len(ids)))
        if columns.reported is not None and (listed := _listed(columns.reported, row)):
            ids, ranks = listed, [_rank(values, one) for one in listed]
        found.token_ids[row, : len(ids)] = ids
        found.logprobs[row, : len(ids)] = shown[ids]
        found.ranks[row, : len(ids)] = ranks
        found.sampled[row] = shown[token]
        found.sampled_ranks[row] = _rank(values, token)
    return found


def _values(logits: NDArray[np.float32], columns: SamplingColumns, row: int) -> Floats:
    """Return the row's logits to report, raw or processed."""
    is_chosen = columns.chosen is not None and columns.chosen[row] >= 0
    kind = 0 if columns.logprobs_kind is None else columns.logprobs_kind[row]
    if is_chosen or kind not in _PROCESSED:
        row_of_logits = logits[row] if is_chosen else masked(logits[row], columns, row)
        raw: Floats = row_of_logits.astype(np.float64)
        return raw
    return processed(logits[row], columns, row)


def processed(logits: NDArray[np.float32], columns: SamplingColumns, row: int) -> Floats:
    """Return the row's logits [V] after all changes before a token is drawn: step 9."""
    values: Floats = adjust(logits, columns, row).astype(np.float64)
    temperature = float(columns.temperature[row])
    if temperature > 0:
        values /= temperature
        if np.isfinite(values.max()):
            values[~_kept(values, _softmax_weights(values), columns, row)] = -np.inf
    return values


def _listed(lists: TokenLists, row: int) -> list[int]:
    ids: list[int] = lists.ids[lists.of_row(row)].tolist()
    return ids


def _rank(values: Floats, token_id: int) -> int:
    return 1 + int(np.count_nonzero(values > values[token_id]))


def _log_softmax(values: Floats) -> Floats:
    top = values.max()
    if np.isinf(top):
        values = np.where(values == top, 0.0, -np.inf)
        top = 0.0
    shown: Floats = values - (top + np.log(np.exp(values - top).sum()))
    return shown


def _best_ids(values: Floats, count: int) -> NDArray[np.intp]:
    """Return the ids of the `count` largest values, best first, the lower id first among equals."""
    count = min(count, len(values))
    if count == 0:
        return np.empty(0, np.intp)
    threshold = np.partition(values, -count)[-count]
    candidates = np.flatnonzero(values >= threshold)
    return candidates[np.argsort(-values[candidates], kind="stable")][:count]
