"""`Sound`: what a model's feature extractor does, as data, like the records of rules.py.

A tile is a part of the spectrum: float32 [frames, bins]. Its size follows from the number of
samples alone. spectrum.py computes the numbers, in a child process.
"""

from __future__ import annotations

from typing import ClassVar

from quire.errors import RequestError
from quire.images.rules import Layout, Rules

RATE = 16_000
"""Samples of a second, for all encoders."""
HOP = 160
"""Samples from a frame to the next one."""
WINDOW = 400
"""Samples of a frame."""


class Sound(Rules, frozen=True, kw_only=True, tag="sound"):
    """The features of Whisper: logarithms of a spectrum with `bins` numbers for each 10 ms."""

    modality: ClassVar[str] = "audio"

    bins: int
    frames: int
    """Most frames of a tile. Longer sounds have several tiles, if `is_divided`."""
    pool: int
    """Positions of the encoder that become one row of the text model. The second convolution makes
    one position of two frames."""
    is_divided: bool
    """Whether sounds are padded to whole tiles (Voxtral). Otherwise, only their own frames are
    computed, and longer ones are refused (Qwen2-Audio)."""
    most_tiles: int = 0
    """Most tiles of a sound; 0: there is no limit."""

    def num_frames(self, num_samples: int) -> int:
        """Frames that are computed: with padding, if the sound `is_divided`."""
        found = -(-num_samples // HOP)
        return -(-found // self.frames) * self.frames if self.is_divided else found

    def layout(self, num_samples: int) -> Layout:
        """The tiles of a sound of so many samples. Raises RequestError if the model cannot take
        it."""
        count, seconds = self.num_frames(num_samples), num_samples / RATE
        most = self.frames * (self.most_tiles or 1)
        if count > most and (self.most_tiles or not self.is_divided):
            raise RequestError(
                f"the audio has {seconds:.1f} s; this model hears at most {most * HOP / RATE:g} s "
                "of it: divide it"
            )
        if self.is_divided and count:
            sizes = ((self.frames, self.bins),) * (count // self.frames)
            return Layout(sizes, depth=4, seconds=seconds)
        # The convolutions of the last pair of frames see the frame after it.
        pairs = (count + 1) // 2
        if pairs < self.pool:
            shortest = (2 * self.pool - 2) * HOP / RATE
            raise RequestError(
                f"the audio is too short: it must be longer than {shortest:g} s, because a shorter "
                "one has no token"
            )
        size = (min(2 * pairs + 1, self.frames), self.bins)
        return Layout((size,), depth=4, seconds=seconds)
