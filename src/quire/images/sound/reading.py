"""The samples of a sound file of any type, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import BinaryIO

from quire.images.sound import container, wav
from quire.images.sound.resampling import resampled
from quire.images.sound.rules import RATE
from quire.images.sound.wav import Floats


def mono_blocks(file: BinaryIO, max_seconds: float) -> Iterator[tuple[int, Floats]]:
    """The rate, and the mean of the channels of the next samples, until the end of the file. At
    least one block. Raises RequestError for a file that cannot be used."""
    file.seek(0)
    blocks = wav.blocks if file.read(4) == b"RIFF" else container.blocks
    return blocks(file, max_seconds)


def samples(file: BinaryIO, max_seconds: float) -> Iterator[Floats]:
    """Blocks of samples at `RATE`. Raises RequestError."""
    blocks = mono_blocks(file, max_seconds)
    rate, first = next(blocks)
    return resampled(chain([first], (block for _, block in blocks)), rate, RATE)
