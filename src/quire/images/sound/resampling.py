"""Resampling with the filter of `torchaudio.functional.resample`: a sinc function times a Hann
window."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from quire.images.sound.wav import Floats

_ZEROS = 6
"""Zero crossings of the filter at each side."""
_ROLLOFF = 0.99
_PIECE = 1 << 12
"""Samples that are computed at once, which stay in the processor's cache."""


def resampled(blocks: Iterable[Floats], old: int, new: int) -> Iterator[Floats]:
    """The samples of all blocks at another rate: weighted sums of neighbours. The numbers do not
    depend on the division into blocks."""
    if old == new:
        yield from blocks
        return
    divisor = math.gcd(old, new)
    old, new = old // divisor, new // divisor
    weights = _weights(old, new)
    reach = weights.shape[1] // 2
    count = done = dropped = 0
    kept = np.zeros(reach, np.float32)  # samples from `dropped - reach` on
    for block in blocks:
        count += len(block)
        kept = np.concatenate([kept, block])
        ready = max(done, -(-(count - reach) * new // old))
        yield _sums(kept, weights, dropped, done, ready, old)
        done = ready
        begin = done * old // new
        kept, dropped = kept[begin - dropped :], begin
    kept = np.concatenate([kept, np.zeros(reach + 1, np.float32)])
    yield _sums(kept, weights, dropped, done, -(-count * new // old), old)


def _weights(old: int, new: int) -> Floats:
    """The weights [new, taps] of the neighbours, by the place between two samples."""
    cutoff = min(old, new) * _ROLLOFF / old
    reach = math.ceil(_ZEROS / cutoff)
    taps = np.arange(-reach, reach + 1)
    times = np.clip((taps - np.arange(new)[:, None] / new) * cutoff, -_ZEROS, _ZEROS)
    window = np.cos(times * np.pi / _ZEROS / 2) ** 2
    weights: Floats = (np.sinc(times) * window * cutoff).astype(np.float32)
    return weights


def _sums(kept: Floats, weights: Floats, dropped: int, begin: int, end: int, old: int) -> Floats:
    """The new samples from `begin` to `end`. The first neighbour of old sample i is the number
    i - dropped of `kept`."""
    found = np.empty(end - begin, np.float32)
    if not len(found):
        return found
    new, num_taps = weights.shape
    around = sliding_window_view(kept, num_taps)
    for first in range(begin, end, _PIECE):
        places = np.arange(first, min(first + _PIECE, end), dtype=np.int64) * old
        parts = around[places // new - dropped], weights[places % new]
        found[first - begin : first - begin + _PIECE] = np.einsum("ij,ij->i", *parts)
    return found
