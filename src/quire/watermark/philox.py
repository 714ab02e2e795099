"""`uniforms`: pseudorandom numbers of a key, a context and tokens, the same everywhere.

The generator is Philox4x32-10 (Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3").
How key, context and token become its counter and key is vLLM's mapping `philox4x32-10-v1`, so that
either finds the other's watermark. In NumPy, in 64-bit integers of which 32 bits count.

Legend: C contexts; W tokens of a context; N tokens of each context.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MASK = np.uint64(2**32 - 1)
_HALF = np.uint64(32)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_INCREMENTS = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_ROUNDS = 10
_BLOCK = 4
"""Words that one call takes in and gives out."""
_OF_CONTEXT, _OF_TOKEN = 0x574D4358, 0x574D544B
"""Constants that keep the two uses apart."""

Words = NDArray[np.uint64]


def uniforms(
    key: int, contexts: NDArray[np.int64], tokens: NDArray[np.int64]
) -> NDArray[np.float32]:
    """float32 in (0, 1) of each context [C, W] (-1: before the first token) and its tokens [C, N]
    or [1, N]: [C, N]."""
    low, high = np.uint64(key & 0xFFFFFFFF), np.uint64(key >> 32)
    state = _absorbed(low, high, contexts)
    words = tokens.astype(np.uint64) & _MASK
    # Four tokens in a row share one call.
    outputs = _philox(
        (words >> np.uint64(2), *(one[:, None] for one in state[:3])),
        (low ^ state[3][:, None], high ^ np.uint64(_OF_TOKEN)),
    )
    places = words & np.uint64(3)
    found = outputs[0]
    for place in range(1, _BLOCK):
        found = np.where(places == place, outputs[place], found)
    return _to_uniform(found)


def _absorbed(low: np.uint64, high: np.uint64, contexts: NDArray[np.int64]) -> tuple[Words, ...]:
    """Four words [C] that the context [C, W] decides."""
    num_contexts, width = contexts.shape
    words = contexts.astype(np.uint64) & _MASK
    state: tuple[Words, ...] = tuple(
        np.full(num_contexts, value, np.uint64) for value in (_OF_CONTEXT, width, 0, 0)
    )
    for offset in range(0, width, _BLOCK):
        block = [
            words[:, offset + index]
            if offset + index < width
            else np.full(num_contexts, 2**32 - 1 - index, np.uint64)
            for index in range(_BLOCK)
        ]
        counter = tuple(one ^ word for one, word in zip(state, block, strict=True))
        state = _philox(counter, (low ^ np.uint64(offset), high))
    return state


def _philox(
    counter: tuple[Words, ...], key: tuple[Words | np.uint64, Words | np.uint64]
) -> tuple[Words, ...]:
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        first, second = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (second >> _HALF) ^ c1 ^ k0,
            second & _MASK,
            (first >> _HALF) ^ c3 ^ k1,
            first & _MASK,
        )
        k0, k1 = (k0 + _INCREMENTS[0]) & _MASK, (k1 + _INCREMENTS[1]) & _MASK
    return c0, c1, c2, c3


def _to_uniform(words: Words) -> NDArray[np.float32]:
    """The upper 24 bits, as numbers between 0 and 1."""
    upper = (words >> np.uint64(8)).astype(np.float64)
    found: NDArray[np.float32] = ((upper + 1.0) / (2**24 + 1)).astype(np.float32)
    return found
