"""The features of sounds, with the numbers of transformers' `WhisperFeatureExtractor`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from quire.images.sound.rules import HOP, RATE, WINDOW, Sound
from quire.images.sound.wav import Floats

_FLOOR = 1e-10
SILENCE = np.float32(-10.0)
"""The logarithm of `_FLOOR`."""
_MOST_FRAMES = 4096
"""Frames that are computed at once, which bounds the memory."""


def log_mel(samples: Floats, rules: Sound) -> Floats:
    """The features [frames, bins] of mono samples at `RATE`, one tile after the other."""
    num_padded = -(-len(samples) // (rules.frames * HOP)) * rules.frames
    count = sum(size[0] for size in rules.layout(len(samples)).sizes)
    padded = np.zeros(num_padded * HOP)
    padded[: len(samples)] = samples
    around = np.pad(padded, WINDOW // 2, mode="reflect")
    found = np.empty((min(count + 1, num_padded), rules.bins), np.float32)
    for begin in range(0, len(found), _MOST_FRAMES):
        end = min(begin + _MOST_FRAMES, len(found))
        found[begin:end] = _log_power(around[begin * HOP :], end - begin, rules.bins)
    # The frames that are left out are silent: none of them is the loudest.
    return normalised(found, found.max())[:count]


def normalised(found: Floats, peak: np.float32) -> Floats:
    """Logarithms as the encoder takes them. `peak`: the largest one of the sound."""
    scaled: Floats = (np.maximum(found, peak - np.float32(8.0)) + np.float32(4.0)) / np.float32(4.0)
    return scaled


def log_powers(blocks: Iterable[Floats], bins: int) -> Iterator[tuple[int, Floats]]:
    """For mono samples at `RATE`: how many have been read, and the next logarithms [frames, bins],
    which are not `normalised`. Each 10 ms have a frame; the last one is the last whose window has a
    sample. Further ones would have `SILENCE`."""
    reach, num_needed = WINDOW // 2, (_MOST_FRAMES - 1) * HOP + WINDOW
    kept, count, is_mirrored = np.zeros(0), 0, False
    for block in blocks:
        kept, count = np.concatenate([kept, block]), count + len(block)
        if not is_mirrored and len(kept) > reach:
            kept, is_mirrored = np.pad(kept, (reach, 0), mode="reflect"), True
        while is_mirrored and len(kept) >= num_needed:
            yield count, _log_power(kept, _MOST_FRAMES, bins).astype(np.float32)
            kept = kept[_MOST_FRAMES * HOP :]
    if not is_mirrored:
        kept = np.pad(np.pad(kept, (0, reach + 1)), (reach, 0), mode="reflect")[: reach + count]
    num_left = -(-len(kept) // HOP)
    kept = np.pad(kept, (0, num_left * HOP + WINDOW - len(kept)))
    yield count, _log_power(kept, num_left, bins).astype(np.float32)


def _log_power(around: NDArray[np.float64], count: int, bins: int) -> NDArray[np.float64]:
    """Logarithms [count, bins] of the power of frames, the first of which begins with `around`."""
    frames = sliding_window_view(around, WINDOW)[::HOP][:count]
    spectrum = np.fft.rfft(frames * np.hanning(WINDOW + 1)[:-1]).astype(np.complex64)
    power = np.abs(spectrum, dtype=np.float64) ** 2
    found: NDArray[np.float64] = np.log10(np.maximum(_FLOOR, power @ _filters(bins)))
    return found


@cache
def _filters(bins: int) -> NDArray[np.float64]:
    """Triangles [WINDOW / 2 + 1, bins] of equal areas, whose centres are at equal distances on
    Slaney's scale of pitches."""
    centres = _centres(bins)
    distances = np.diff(centres)
    slopes = centres[None] - np.linspace(0, RATE // 2, WINDOW // 2 + 1)[:, None]
    rising, falling = -slopes[:, :-2] / distances[:-1], slopes[:, 2:] / distances[1:]
    areas: NDArray[np.float64] = 2.0 / (centres[2:] - centres[:-2])
    return np.maximum(0.0, np.minimum(rising, falling)) * areas


def band_centres(bins: int) -> NDArray[np.float64]:
    """The centre of each number of a frame, in hertz."""
    return _centres(bins)[1:-1]


def _centres(bins: int) -> NDArray[np.float64]:
    return _hertz(np.linspace(0.0, _mel(RATE / 2), bins + 2))


_STEP = 27.0 / np.log(6.4)
"""Mels for a factor of e, from 1000 Hz (15 mel) on; below, a mel is 200 / 3 Hz."""


def _mel(hertz: float) -> float:
    return float(15.0 + np.log(hertz / 1000.0) * _STEP)


def _hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(mels < 15.0, 200.0 * mels / 3.0, 1000.0 * np.exp((mels - 15.0) / _STEP))
