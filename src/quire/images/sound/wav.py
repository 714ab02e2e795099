"""WAV files: their samples, and a file of samples. Resampling.

All sizes in a file are checked against its length before anything is allocated.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from quire.errors import RequestError

MAX_SECONDS = 600
"""Longest sound."""
RATES = (1_000, 384_000)
"""Lowest and highest number of samples of a second."""
_MOST_CHANNELS = 64
_LOUDEST = 1e6
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_UNKNOWN_SIZES = (0, 0xFFFFFFFF)
"""Sizes in files whose length was not known when they were begun: the samples reach to the end."""
_ZEROS = 6
"""Zero crossings of the filter at each side."""
_ROLLOFF = 0.99
_PIECE = 1 << 12
"""Samples that are computed at once, which stay in the processor's cache."""
_NOT_A_WAV = (
    "the samples of a WAV file must have 8, 16, 24 or 32 bits, or be floating-point numbers; "
    "convert others with `ffmpeg -i FILE -ac 1 -ar 16000 FILE.wav`"
)
NOT_A_SOUND = (
    "the audio must be a file of type WAV, FLAC, MP3, OGG, OPUS, M4A, MP4 or WEBM; convert others "
    "with `ffmpeg -i FILE -ac 1 -ar 16000 FILE.wav`"
)


def mono_samples(data: bytes) -> tuple[NDArray[np.float32], int]:
    """The mean of the channels of a WAV file, and its rate. Raises RequestError."""
    kind, channels, rate, bits, samples = _parts(data)
    width = channels * bits // 8
    count = len(samples) // width
    check_length(count, rate)
    values = _values(samples[: count * width], kind, bits).reshape(count, channels)
    return mean_of_channels(values), rate


def check_form(rate: int, channels: int) -> None:
    """Raises RequestError unless a sound may have this rate and so many channels."""
    if not RATES[0] <= rate <= RATES[1]:
        raise RequestError(
            f"the audio has {rate} samples of a second; {RATES[0]} to {RATES[1]} are taken"
        )
    if not 1 <= channels <= _MOST_CHANNELS:
        raise RequestError(f"the audio has {channels} channels; 1 to {_MOST_CHANNELS} are taken")


def check_length(count: int, rate: int) -> None:
    """Raises RequestError if so many samples of a channel are too many."""
    if count > MAX_SECONDS * rate:
        raise RequestError(f"the audio has more than {MAX_SECONDS} s: divide it")


def mean_of_channels(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """One channel of the samples [count, channels]."""
    mono: NDArray[np.float32] = (
        values[:, 0] if values.shape[1] == 1 else values.mean(axis=1, dtype=np.float32)
    )
    if not (np.abs(mono) <= _LOUDEST).all():
        raise RequestError("the audio has samples that are not numbers, or far beyond -1 to 1")
    return mono


def wav_of(samples: NDArray[np.float32], rate: int) -> bytes:
    """A WAV file of mono samples."""
    head = struct.pack("<4sIHHIIHH", b"fmt ", 16, _FLOAT, 1, rate, 4 * rate, 4, 32)
    body = samples.astype("<f4").tobytes()
    size = len(head) + len(body) + 12
    return b"RIFF" + struct.pack("<I4s", size, b"WAVE") + head + struct.pack(
        "<4sI", b"data", len(body)
    ) + body  # fmt: skip


def _parts(data: bytes) -> tuple[int, int, int, int, memoryview]:
    """The format, channels, rate and bits of a file, and the bytes of its samples."""
    if data[8:12] != b"WAVE":
        raise RequestError(NOT_A_SOUND)
    chunks = dict(_chunks(memoryview(data)))
    head, samples = chunks.get(b"fmt "), chunks.get(b"data")
    if head is None or samples is None or len(head) < 16:
        raise RequestError("the audio file is damaged or cut off")
    kind, channels, rate, _, width, bits = struct.unpack_from("<HHIIHH", head)
    if kind == _EXTENSIBLE and len(head) >= 26:
        (kind,) = struct.unpack_from("<H", head, 24)
    if (kind, bits) not in ((_FLOAT, 32), (_FLOAT, 64), *((_PCM, one) for one in (8, 16, 24, 32))):
        raise RequestError(_NOT_A_WAV)
    check_form(rate, channels)
    if width != channels * bits // 8:
        raise RequestError("the audio file is damaged: its channels and their width do not agree")
    return kind, channels, rate, bits, samples


def _chunks(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """The chunks up to the samples."""
    begin = 12
    while begin + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, begin)
        begin += 8
        if name == b"data" and size in _UNKNOWN_SIZES:
            size = len(data) - begin
        if begin + size > len(data):
            raise RequestError("the audio file is damaged or cut off")
        yield name, data[begin : begin + size]
        if name == b"data":
            return
        begin += size + size % 2


def _values(data: memoryview, kind: int, bits: int) -> NDArray[np.float32]:
    """The samples from -1 to 1, one after the other."""
    found: NDArray[np.float32]
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


def scaled(values: NDArray[Any]) -> NDArray[np.float32]:
    """Whole numbers with a sign as numbers from -1 to 1; others are the same ones in float32."""
    found = values.astype(np.float32)
    if values.dtype.kind == "i":
        found /= np.float32(2 ** (8 * values.dtype.itemsize - 1))
    return found


def resampled(samples: NDArray[np.float32], old: int, new: int) -> NDArray[np.float32]:
    """Samples at another rate: weighted sums of neighbours, with the weights of
    `torchaudio.functional.resample`, a sinc function times a Hann window."""
    if old == new:
        return samples
    divisor = math.gcd(old, new)
    old, new = old // divisor, new // divisor
    cutoff = min(old, new) * _ROLLOFF / old
    reach = math.ceil(_ZEROS / cutoff)
    taps = np.arange(-reach, reach + 1)
    times = np.clip((taps - np.arange(new)[:, None] / new) * cutoff, -_ZEROS, _ZEROS)
    window = np.cos(times * np.pi / _ZEROS / 2) ** 2
    weights = (np.sinc(times) * window * cutoff).astype(np.float32)
    around = sliding_window_view(np.pad(samples, (reach, reach + 1)), len(taps))
    found = np.empty(-(-len(samples) * new // old), np.float32)
    for begin in range(0, len(found), _PIECE):
        places = np.arange(begin, min(begin + _PIECE, len(found)), dtype=np.int64) * old
        parts = around[places // new], weights[places % new]
        found[begin : begin + _PIECE] = np.einsum("ij,ij->i", *parts)
    return found
