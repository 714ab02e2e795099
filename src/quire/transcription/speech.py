"""`speech_spans`: the parts of a sound in which somebody may speak.

Noise is steady and speech is not: within some seconds, each band of the spectrum is almost silent
once. So a frame has speech if its bands are far above their own minima of the seconds around it.
Music and other sounds that change count as speech, too: a part that is left out by mistake is worse
than one that is kept, which the model can call silent.

Legend: F frames of 10 ms, B bands of a block of frames.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from quire.images.sound.spectrum import band_centres
from quire.transcription.records import Floats
from quire.transcription.sound_file import SoundFile

_LOWEST_HZ, _HIGHEST_HZ = 100, 4000
"""The frequencies of speech, which telephones have, too."""
_BANDS = 12
_RANGE = 8.0
"""Numbers of the spectrum (logarithms to the base 10) below the loudest one are not heard."""
_SMOOTHED = 5
"""Frames whose mean is taken."""
_BLOCK = 50
"""Frames of a block, of which only the minimum of each band is kept."""
_PART = 300 * _BLOCK
"""Frames that are read at once."""
_REACH = 12
"""Blocks before and after a block whose minima count: 6 s at each side."""
_MOST_ABOVE = 2.5
"""Most that a band counts: 25 dB."""
_THRESHOLD = 0.62
"""Mean over the bands that speech has. White and pink noise have less than 0.57."""
_FEWEST = 10
"""Fewest frames of speech in a span."""
MIN_SILENCE = 200
"""Frames without speech that end a span: 2 s."""
PADDING = 40
"""Frames that are kept before and after speech."""


def speech_spans(sound: SoundFile) -> list[range]:
    """The frames that are kept, in order. Reads the spectrum twice; only the minima and a number of
    each frame are in memory."""
    lows = np.concatenate([_minima(part) for part in _parts(sound)])
    around = np.pad(lows, ((_REACH, _REACH), (0, 0)), mode="edge")
    floors = sliding_window_view(around, 2 * _REACH + 1, axis=0).min(-1)
    heights, place = [], 0
    for part in _parts(sound):
        count = -(-len(part) // _BLOCK)
        floor = np.repeat(floors[place : place + count], _BLOCK, axis=0)[: len(part)]
        heights.append(np.minimum(part - floor, _MOST_ABOVE).mean(1))
        place += count
    return _spans(np.flatnonzero(np.concatenate(heights) > _THRESHOLD), sound.num_frames)


def _parts(sound: SoundFile) -> Iterator[Floats]:
    """The smoothed bands [frames, B]. The last frames, which reach beyond the sound, are left out:
    they are not as loud as noise is."""
    centres = band_centres(sound.bins)
    inside = np.flatnonzero((centres > _LOWEST_HZ) & (centres < _HIGHEST_HZ))
    borders = inside[0] + np.arange(_BANDS) * len(inside) // _BANDS
    widths = np.diff([*borders, inside[-1] + 1]).astype(np.float32)
    num_frames, reach = max(1, sound.num_frames - 2), _SMOOTHED // 2
    for first in range(0, num_frames, _PART):
        found = sound.logarithms(first, min(_PART, num_frames - first))[:, : inside[-1] + 1]
        found = np.maximum(found, sound.peak - _RANGE)
        bands = np.add.reduceat(found, borders, axis=1) / widths
        around = np.pad(bands, ((reach, reach), (0, 0)), mode="edge")
        yield sliding_window_view(around, _SMOOTHED, axis=0).mean(-1)


def _minima(part: Floats) -> Floats:
    """The minimum of each band in each block [blocks, B]."""
    count = -(-len(part) // _BLOCK)
    whole = np.pad(part, ((0, count * _BLOCK - len(part)), (0, 0)), mode="edge")
    lows: Floats = whole.reshape(count, _BLOCK, -1).min(1)
    return lows


def _spans(places: NDArray[np.intp], num_frames: int) -> list[range]:
    """Spans around frames with speech."""
    borders = np.flatnonzero(np.diff(places) > MIN_SILENCE) + 1
    return [
        range(max(0, int(part[0]) - PADDING), min(num_frames, int(part[-1]) + 1 + PADDING))
        for part in np.split(places, borders)
        if len(part) >= _FEWEST
    ]
