"""The features of sounds, with the numbers of transformers' `WhisperFeatureExtractor`."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from quire.images.sound.rules import HOP, RATE, WINDOW, Sound

_FLOOR = 1e-10
_MOST_FRAMES = 4096
"""Frames that are computed at once, which bounds the memory."""


def log_mel(samples: NDArray[np.float32], rules: Sound) -> NDArray[np.float32]:
    """The features [frames, bins] of mono samples at `RATE`, one tile after the other."""
    num_padded = -(-len(samples) // (rules.frames * HOP)) * rules.frames
    count = sum(size[0] for size in rules.layout(len(samples)).sizes)
    padded = np.zeros(num_padded * HOP)
    padded[: len(samples)] = samples
    windows = sliding_window_view(np.pad(padded, WINDOW // 2, mode="reflect"), WINDOW)[::HOP]
    hann = np.hanning(WINDOW + 1)[:-1]
    found = np.empty((min(count + 1, num_padded), rules.bins), np.float32)
    for begin in range(0, len(found), _MOST_FRAMES):
        frames = windows[begin : min(begin + _MOST_FRAMES, len(found))]
        spectrum = np.fft.rfft(frames * hann).astype(np.complex64)
        power = np.abs(spectrum, dtype=np.float64) ** 2
        mel = np.maximum(_FLOOR, power @ _filters(rules.bins))
        found[begin : begin + len(frames)] = np.log10(mel)
    # The frames that are left out are silent: none of them is the loudest.
    found = np.maximum(found, found.max() - np.float32(8.0))
    scaled: NDArray[np.float32] = (found[:count] + np.float32(4.0)) / np.float32(4.0)
    return scaled


@cache
def _filters(bins: int) -> NDArray[np.float64]:
    """Triangles [WINDOW / 2 + 1, bins] of equal areas, whose centres are at equal distances on
    Slaney's scale of pitches."""
    centres = _hertz(np.linspace(0.0, _mel(RATE / 2), bins + 2))
    distances = np.diff(centres)
    slopes = centres[None] - np.linspace(0, RATE // 2, WINDOW // 2 + 1)[:, None]
    rising, falling = -slopes[:, :-2] / distances[:-1], slopes[:, 2:] / distances[1:]
    areas: NDArray[np.float64] = 2.0 / (centres[2:] - centres[:-2])
    return np.maximum(0.0, np.minimum(rising, falling)) * areas


_STEP = 27.0 / np.log(6.4)
"""Mels for a factor of e, from 1000 Hz (15 mel) on; below, a mel is 200 / 3 Hz."""


def _mel(hertz: float) -> float:
    return float(15.0 + np.log(hertz / 1000.0) * _STEP)


def _hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(mels < 15.0, 200.0 * mels / 3.0, 1000.0 * np.exp((mels - 15.0) / _STEP))
