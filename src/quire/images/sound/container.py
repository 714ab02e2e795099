"""Sound files of other types than WAV: their samples, decoded by PyAV, which contains FFmpeg.

Only demuxers and decoders of the lists below are opened, so that a file cannot choose from the
hundreds that FFmpeg has. Pictures and other streams of a file are never decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from quire.errors import RequestError
from quire.images.sound.wav import (
    NOT_A_SOUND,
    Floats,
    check_form,
    check_length,
    mean_of_channels,
    scaled,
)

_BEGINNINGS = {b"fLaC": "flac", b"OggS": "ogg", b"\x1aE\xdf\xa3": "matroska"}
"""FFmpeg's names of demuxers, by the first bytes of a file. WEBM is a kind of Matroska."""
_DECODERS = ("aac", "alac", "flac", "mp3float", "opus", "vorbis")
_OPTIONS = {"codec_whitelist": ",".join(_DECODERS), "max_streams": "32"}
_PREFIX_BYTES = 10
_BLOCK_BYTES = 1 << 18
_DAMAGED = "the audio file is damaged or cut off, and cannot be decoded"


def blocks(source: BinaryIO, max_seconds: float) -> Iterator[tuple[int, Floats]]:
    """The rate, and the mean of the channels of the next samples of the first sound of a file,
    until its end. Raises RequestError."""
    demuxer = _demuxer(source)
    source.seek(0)
    try:
        import av
        import av.logging
    except ImportError:
        raise RequestError(
            "audio files other than WAV need the package av, which is not installed where the "
            "model runs: pip install 'quire-engine[audio]', or send a WAV file"
        ) from None
    av.logging.set_level(None)  # FFmpeg's texts would be written to the log of the server
    try:
        with av.open(source, format=demuxer, options=_OPTIONS, metadata_errors="ignore") as file:
            yield from _decoded(file, max_seconds)
    except (MemoryError, RequestError):
        raise
    except Exception:  # a damaged file can make PyAV raise anything
        raise RequestError(_DAMAGED) from None


def _demuxer(file: BinaryIO) -> str:
    file.seek(0)
    data = file.read(_PREFIX_BYTES + 1)
    if data[4:8] == b"ftyp":
        return "mov"
    has_tags = data[:3] == b"ID3" and len(data) > _PREFIX_BYTES  # they may be before FLAC, too
    if has_tags:
        size = sum(
            (byte & 127) << shift for byte, shift in zip(data[6:10], (21, 14, 7, 0), strict=True)
        )
        file.seek(_PREFIX_BYTES + size)
        data = file.read(4)
    if found := _BEGINNINGS.get(data[:4]):
        return found
    # A frame of MPEG audio begins with 11 bits that are 1; AAC without a container has layer 0.
    is_frame = data[:1] == b"\xff" and data[1:2] >= b"\xe0"
    if has_tags or (is_frame and data[1] & 6):
        return "mp3"
    raise RequestError(NOT_A_SOUND)


def _decoded(file: Any, max_seconds: float) -> Iterator[tuple[int, Floats]]:
    if not file.streams.audio:
        raise RequestError("the file has no audio stream")
    stream = file.streams.audio[0]
    context = stream.codec_context
    if context is None or context.name not in _DECODERS:
        name = "an unknown codec" if context is None else f"the codec {context.name}"
        raise RequestError(f"the audio has {name}; {', '.join(_DECODERS)} are decoded")
    check_form(context.sample_rate, context.layout.nb_channels)
    context.thread_count = 1  # the process may start no threads
    form, count, found = None, 0, bytearray()
    for frame in file.decode(stream):
        own = frame.sample_rate, frame.layout.nb_channels
        if form is None:
            check_form(*own)
            form = own
        if own != form:
            raise RequestError("the audio changes its rate or its number of channels: convert it")
        found += _mono(frame).tobytes()
        check_length(count + len(found) // 4, form[0], max_seconds)
        if len(found) >= _BLOCK_BYTES:
            count += len(found) // 4
            yield form[0], np.frombuffer(found, np.float32)
            found = bytearray()
    if form is None:
        raise RequestError(_DAMAGED)
    yield form[0], np.frombuffer(found, np.float32)


def _mono(frame: Any) -> Floats:
    values = frame.to_ndarray()
    count = frame.layout.nb_channels
    values = values.T if frame.format.is_planar else values.reshape(-1, count)
    return mean_of_channels(scaled(np.ascontiguousarray(values)))
