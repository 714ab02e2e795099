"""WAV files: their samples, and a file of samples.

All sizes in a file are checked against its length before anything is allocated.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from quire.errors import RequestError

Floats = NDArray[np.float32]

MAX_SECONDS = 600
"""Longest sound of a prompt."""
RATES = (1_000, 384_000)
"""Lowest and highest number of samples of a second."""
_MOST_CHANNELS = 64
_LOUDEST = 1e6
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_UNKNOWN_SIZES = (0, 0xFFFFFFFF)
"""Sizes in files whose length was not known when they were begun: the samples reach to the end."""
_HEAD_BYTES = 40
"""Bytes of the largest description of samples."""
_BLOCK_BYTES = 1 << 20
_CUT_OFF = "the audio file is damaged or cut off"
_NOT_A_WAV = (
    "the samples of a WAV file must have 8, 16, 24 or 32 bits, or be floating-point numbers; "
    "convert others with `ffmpeg -i FILE -ac 1 -ar 16000 FILE.wav`"
)
NOT_A_SOUND = (
    "the audio must be a file of type WAV, FLAC, MP3, OGG, OPUS, M4A, MP4 or WEBM; convert others "
    "with `ffmpeg -i FILE -ac 1 -ar 16000 FILE.wav`"
)


def blocks(file: BinaryIO, max_seconds: float) -> Iterator[tuple[int, Floats]]:
    """The rate, and the mean of the channels of the next samples of a WAV file, until its end. At
    least one block, which may be empty. Raises RequestError."""
    kind, channels, rate, bits, size = _parts(file)
    width = channels * bits // 8
    count = size // width
    check_length(count, rate, max_seconds)
    most = max(1, _BLOCK_BYTES // width)
    for begin in range(0, max(count, 1), most):
        wanted = min(most, count - begin)
        data = file.read(wanted * width)
        if len(data) != wanted * width:
            raise RequestError(_CUT_OFF)
        yield rate, mean_of_channels(_values(data, kind, bits).reshape(wanted, channels))


def check_form(rate: int, channels: int) -> None:
    """Raises RequestError unless a sound may have this rate and so many channels."""
    if not RATES[0] <= rate <= RATES[1]:
        raise RequestError(
            f"the audio has {rate} samples of a second; {RATES[0]} to {RATES[1]} are taken"
        )
    if not 1 <= channels <= _MOST_CHANNELS:
        raise RequestError(f"the audio has {channels} channels; 1 to {_MOST_CHANNELS} are taken")


def check_length(count: int, rate: int, max_seconds: float) -> None:
    """Raises RequestError if so many samples of a channel are too many."""
    if count > max_seconds * rate:
        raise RequestError(f"the audio has more than {max_seconds:g} s: divide it")


def mean_of_channels(values: Floats) -> Floats:
    """One channel of the samples [count, channels]."""
    mono: Floats = values[:, 0] if values.shape[1] == 1 else values.mean(axis=1, dtype=np.float32)
    if not (np.abs(mono) <= _LOUDEST).all():
        raise RequestError("the audio has samples that are not numbers, or far beyond -1 to 1")
    return mono


def wav_of(samples: Floats, rate: int) -> bytes:
    """A WAV file of mono samples."""
    head = struct.pack("<4sIHHIIHH", b"fmt ", 16, _FLOAT, 1, rate, 4 * rate, 4, 32)
    body = samples.astype("<f4").tobytes()
    size = len(head) + len(body) + 12
    return b"RIFF" + struct.pack("<I4s", size, b"WAVE") + head + struct.pack(
        "<4sI", b"data", len(body)
    ) + body  # fmt: skip


def _parts(file: BinaryIO) -> tuple[int, int, int, int, int]:
    """The format, channels, rate and bits of a file, and the number of bytes of its samples, which
    are read next."""
    head, size = _head(file)
    kind, channels, rate, _, width, bits = struct.unpack_from("<HHIIHH", head)
    if kind == _EXTENSIBLE and len(head) >= 26:
        (kind,) = struct.unpack_from("<H", head, 24)
    if (kind, bits) not in ((_FLOAT, 32), (_FLOAT, 64), *((_PCM, one) for one in (8, 16, 24, 32))):
        raise RequestError(_NOT_A_WAV)
    check_form(rate, channels)
    if width != channels * bits // 8:
        raise RequestError("the audio file is damaged: its channels and their width do not agree")
    return kind, channels, rate, bits, size


def _head(file: BinaryIO) -> tuple[bytes, int]:
    """The chunk that describes the samples, and the number of their bytes. Reads up to them."""
    num_bytes, begin, head = file.seek(0, os.SEEK_END), 12, b""
    file.seek(8)
    if file.read(4) != b"WAVE":
        raise RequestError(NOT_A_SOUND)
    while begin + 8 <= num_bytes:
        file.seek(begin)
        name, size = struct.unpack("<4sI", file.read(8))
        begin += 8
        if name == b"data" and size in _UNKNOWN_SIZES:
            size = num_bytes - begin
        if begin + size > num_bytes:
            break
        if name == b"data" and len(head) >= 16:
            return head, size
        if name == b"data":
            break
        if name == b"fmt ":
            head = file.read(min(size, _HEAD_BYTES))
        begin += size + size % 2
    raise RequestError(_CUT_OFF)


def _values(data: bytes, kind: int, bits: int) -> Floats:
    """The samples from -1 to 1, one after the other."""
    found: Floats
    if kind == _FLOAT:
        with np.errstate(over="ignore"):  # infinite ones are refused later
            found = np.frombuffer(data, f"<f{bits // 8}").astype(np.float32)
    elif bits == 8:
        found = (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / np.float32(128)
    elif bits == 24:
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        found = wide.reshape(-1).view("<i4").astype(np.float32) / np.float32(2**31)
    else:
        found = scaled(np.frombuffer(data, f"<i{bits // 8}"))
    return found


def scaled(values: NDArray[Any]) -> Floats:
    """Whole numbers with a sign as numbers from -1 to 1; others are the same ones in float32."""
    found = values.astype(np.float32)
    if values.dtype.kind == "i":
        found /= np.float32(2 ** (8 * values.dtype.itemsize - 1))
    return found
