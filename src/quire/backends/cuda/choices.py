"""`Choices`: how tokens are chosen from a piece of a step's logits, as the device reads it.

The device chooses for most rows. The host does it where log-probabilities are wanted, where a token
is fixed in advance, and for rules that have no kernel (`chosen_by_host`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quire.sampling.columns import SamplingColumns
from quire.sampling.masks import MASK_BITS
from quire.sampling.token_lists import TokenLists

FIELDS = 12
"""Numbers of a row, as in `kernels/choice/tokens.py`."""
MOST_LIST_BYTES = 8 << 20
"""Room for the lists and masks of a piece."""
_PENALTIES = ("frequency_penalty", "presence_penalty")
Flags = NDArray[np.bool_]
Integers = NDArray[np.int32]


@dataclass(slots=True)
class Choices:
    """The rows of a piece."""

    numbers: NDArray[np.float64]
    """[L, FIELDS]"""
    masks: Integers
    """[M, W]; the bits of the tokens that may be chosen."""
    lists: list[tuple[int, TokenLists]] = field(default_factory=list)
    """Changes of logits by token, in order: 0 adds numbers, 1 are penalties."""

    @property
    def is_greedy(self) -> bool:
        """Whether no row needs a random number."""
        return not self.numbers[:, 0].any()

    @property
    def has_cuts(self) -> tuple[bool, bool]:
        """Whether a row has top_k, and top_p."""
        is_random = self.numbers[:, 0] > 0
        top_p, top_k = self.numbers[is_random, 3], self.numbers[is_random, 4]
        return bool((top_k > 0).any()), bool((top_p < 1).any())


def random_numbers(seeds: NDArray[np.uint64], counters: NDArray[np.uint64]) -> NDArray[np.float64]:
    """`quire.sampling.reference.uniform` of each pair."""
    mixed = _splitmix64(seeds ^ _splitmix64(counters))
    numbers: NDArray[np.float64] = (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers


def _splitmix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return found


def chosen_by_host(columns: SamplingColumns, vocab_size: int) -> Flags:
    """[L]; the rows whose tokens the host chooses."""
    found = np.zeros(len(columns.temperature), np.bool_)
    for column in (columns.num_logprobs, columns.chosen, columns.mass_from):
        if column is not None:
            found |= column >= 0
    bias = columns.bias
    if bias is not None and bias.values is not None:
        bad = np.isnan(bias.values) | (bias.values == np.inf)
        rows = np.repeat(np.arange(len(found)), np.diff(bias.starts))
        found[rows[bad]] = True
        places, counts = np.unique(rows * np.int64(vocab_size) + bias.ids, return_counts=True)
        found[places[counts > 1] // vocab_size] = True  # numbers of one token are added in order
    sizes = sum(
        np.diff(lists.starts) * 8 for lists in (bias, columns.seen) if lists is not None
    ) + _has_mask(columns) * 4 * -(-vocab_size // MASK_BITS)
    found |= np.cumsum(sizes) > MOST_LIST_BYTES
    return found


def _has_mask(columns: SamplingColumns) -> Flags:
    found = np.zeros(len(columns.temperature), np.bool_)
    if columns.mask is not None:
        found |= columns.mask.index >= 0
    if columns.allowed is not None:
        found |= np.diff(columns.allowed.starts) > 0
    return found


def choices_of(
    columns: SamplingColumns, by_host: Flags, places: Integers | None, vocab_size: int
) -> Choices:
    """The rows of a piece. Rows of the host are greedy. `places` [L]: where tokens are kept."""
    numbers = np.zeros((len(by_host), FIELDS))
    numbers[:, 0] = columns.temperature
    numbers[:, 1] = random_numbers(columns.seeds, columns.counters)
    for place, name in ((2, "min_p"), (4, "top_k"), *zip((8, 9), _PENALTIES, strict=True)):
        column = getattr(columns, name)
        numbers[:, place] = 0 if column is None else column
    numbers[:, 3] = 1 if columns.top_p is None else columns.top_p
    numbers[:, 5] = -1 if places is None else places
    penalty = columns.repetition_penalty
    numbers[:, 6] = 1 if penalty is None else np.float32(1) / penalty
    numbers[:, 7] = 1 if penalty is None else penalty
    has_mask = _has_mask(columns) & ~by_host
    numbers[:, 10] = np.where(has_mask, np.cumsum(has_mask) - 1, -1)
    numbers[by_host, 0], numbers[by_host, 5] = 0, -1
    rows = np.flatnonzero(has_mask).tolist()
    width = -(-vocab_size // MASK_BITS)
    masks = [_words(columns, row, width) for row in rows]
    found = Choices(numbers, np.stack(masks) if masks else np.empty((0, width), np.int32))
    for kind, lists in enumerate((columns.bias, columns.seen)):
        if lists is not None and (own := _without(lists, by_host)).ids.size:
            found.lists.append((kind, own))
    return found


def _without(lists: TokenLists, left_out: Flags) -> TokenLists:
    """Empty lists for some rows."""
    counts = np.diff(lists.starts)
    kept = np.repeat(~left_out, counts)
    starts = np.concatenate([[0], np.cumsum(np.where(left_out, 0, counts))]).astype(np.int32)
    values = None if lists.values is None else lists.values[kept]
    return TokenLists(starts, lists.ids[kept], values)


def _words(columns: SamplingColumns, row: int, width: int) -> Integers:
    """The bits of the tokens that a row's mask and its list allow."""
    words = np.full(width, -1, np.int32)
    if columns.mask is not None and columns.mask.index[row] >= 0:
        words = columns.mask.words[columns.mask.index[row]].view(np.int32)
    if columns.allowed is not None:
        ids = columns.allowed.ids[columns.allowed.of_row(row)]
        if len(ids):
            is_listed = np.zeros(width * MASK_BITS, np.bool_)
            is_listed[ids] = True
            words = words & np.packbits(is_listed, bitorder="little").view(np.int32)
    return words
