"""The process that computes the spectrum of long sounds, under the same limits as `child`.

It has neither the file nor the whole spectrum: it asks its parent for bytes, and sends frames as
they are computed.
"""

from __future__ import annotations

import io
import os
import struct
import time
from typing import Any

import msgspec

from quire.images.job import FRAMES, WANTED, SpectrumJob
from quire.images.serving import serve_with_refusals
from quire.images.sound.reading import samples
from quire.images.sound.rules import RATE
from quire.images.sound.spectrum import log_powers
from quire.system.child_serving import exchange, limit_processor_time

_BUFFER_BYTES = 1 << 18
_SECONDS = 30.0
"""Processor time before the first frames."""
_SECONDS_PER_SECOND = 0.2
"""Further processor time for a second of sound."""
_jobs = msgspec.msgpack.Decoder(SpectrumJob)


class _ParentFile(io.RawIOBase):
    """The file, whose bytes the parent sends."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes, self._place = num_bytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._num_bytes}[whence]
        self._place = max(0, begin + offset)
        return self._place

    def readinto(self, target: Any) -> int:
        size = min(len(target), max(0, self._num_bytes - self._place))
        data = exchange(WANTED, struct.pack("<QI", self._place, size)) if size else b""
        target[: len(data)] = data
        self._place += len(data)
        return len(data)


def _spectrum(data: bytes) -> bytes:
    """Sends the frames; the result is the number of samples."""
    job, begin, count = _jobs.decode(data), time.process_time(), 0
    limit_processor_time(_SECONDS)
    with io.BufferedReader(_ParentFile(job.num_bytes), _BUFFER_BYTES) as file:
        for count, frames in log_powers(samples(file, job.max_seconds), job.bins):
            exchange(FRAMES, frames.astype("<f4").tobytes())
            used_s = time.process_time() - begin
            limit_processor_time(_SECONDS + _SECONDS_PER_SECOND * count / RATE - used_s)
    return struct.pack("<Q", count)


def main() -> None:
    """Serves jobs until the parent closes the socket, or until the process has grown."""
    serve_with_refusals(_spectrum)
