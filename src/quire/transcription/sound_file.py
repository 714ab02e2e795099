"""`SoundFile`: the spectrum of a sound of any length, in a temporary file.

A child process decodes the file block by block (`images/process`), so that neither the samples nor
the spectrum are in memory as a whole. The windows of the encoder are read from the temporary file.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from quire.errors import CapacityError, QuireError
from quire.images.process import MAX_PROCESSES, spectrum
from quire.images.sound.rules import HOP, RATE
from quire.images.sound.spectrum import SILENCE, normalised
from quire.transcription.records import Floats

MAX_SECONDS = 8 * 3600.0
"""Longest sound, unless another limit is given. An hour has 115 MB of spectrum (80 bins)."""
WINDOW_FRAMES = 3000
"""Frames of a window: 30 s."""
FRAMES_PER_SECOND = RATE // HOP
_threads = ThreadPoolExecutor(MAX_PROCESSES, "quire-sound")
"""Further files wait without a thread."""


class SoundFile:
    """Owns the temporary file, which has no name and ends with `close` or with this object."""

    def __init__(self, file: BinaryIO, bins: int, num_samples: int, peak: np.float32) -> None:
        self._file, self.bins = file, bins
        self.num_samples = num_samples
        self.peak = peak
        """The largest number of the spectrum."""
        self._row_bytes = 4 * bins
        self._num_stored = os.fstat(file.fileno()).st_size // self._row_bytes

    @property
    def num_frames(self) -> int:
        """Whole frames of 10 ms."""
        return self.num_samples // HOP

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.num_samples / RATE

    def window(self, first: int, count: int | None = None) -> Floats:
        """The normalised spectrum [WINDOW_FRAMES, bins] from a frame on. `count`: frames that it
        has; the others are zeros, as openai-whisper cuts a window. None: it has them all, and after
        the end of the sound they are silent, as those of transformers' feature extractor."""
        count = WINDOW_FRAMES if count is None else count
        found = np.zeros((WINDOW_FRAMES, self.bins), np.float32)
        found[:count] = normalised(self.logarithms(first, count), self.peak)
        return found

    def logarithms(self, first: int, count: int) -> Floats:
        """The spectrum [count, bins] from a frame on, before it is normalised. After the end of the
        sound it is silent."""
        found = np.full((count, self.bins), SILENCE)
        num_stored = max(0, min(count, self._num_stored - first))
        size, place = num_stored * self._row_bytes, first * self._row_bytes
        data = os.pread(self._file.fileno(), size, place)
        if len(data) != size:
            raise QuireError("the temporary file of a sound's spectrum has been cut off")
        found[:num_stored] = np.frombuffer(data, "<f4").reshape(num_stored, self.bins)
        return found

    def close(self) -> None:
        """Frees the temporary file. Idempotent."""
        self._file.close()

    def __enter__(self) -> SoundFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _StoppedError(Exception):
    """The caller no longer waits."""


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self.num_bytes, self._data = len(data), memoryview(data)

    def read_at(self, place: int, size: int) -> bytes:
        return bytes(self._data[place : place + size])


class _File:
    def __init__(self, file: BinaryIO) -> None:
        self.num_bytes, self._file = os.fstat(file.fileno()).st_size, file

    def read_at(self, place: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, place)


class _Spectrum:
    """The temporary file while it is written."""

    def __init__(self, bins: int, stopped: threading.Event | None) -> None:
        self._bins, self._stopped = bins, stopped
        with _disk_errors():
            # Without a buffer: a write fails at once if the disk is full.
            self.file: BinaryIO = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self.peak = SILENCE

    def take(self, data: bytes) -> None:
        if self._stopped is not None and self._stopped.is_set():
            raise _StoppedError
        frames = np.frombuffer(data, "<f4").reshape(-1, self._bins)
        self.peak = max(self.peak, frames.max(initial=SILENCE))
        with _disk_errors():
            while data:
                data = data[self.file.write(data) :]


@contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CapacityError(
            f"the spectrum of the sound cannot be written to {tempfile.gettempdir()}: "
            f"{error.strerror}; set TMPDIR to a folder with more room"
        ) from None


def open_sound(
    source: bytes | Path,
    bins: int,
    *,
    max_seconds: float = MAX_SECONDS,
    stopped: threading.Event | None = None,
) -> SoundFile:
    """Decodes a file, given by its bytes or its path, and computes its spectrum. Blocks. `bins`:
    numbers of a frame (80 or 128). `stopped`: another thread sets it to end the work, with any
    exception.

    Raises RequestError for a file that cannot be used, CapacityError if the disk is full or a
    signal stops the child, OSError if the path cannot be read.
    """
    if isinstance(source, Path):
        with source.open("rb") as file:
            return _read(_File(file), bins, max_seconds, stopped)
    return _read(_Bytes(source), bins, max_seconds, stopped)


async def opened_sound(
    source: bytes | Path, bins: int, *, max_seconds: float = MAX_SECONDS
) -> SoundFile:
    """`open_sound` in a thread. If the caller is cancelled, the work ends."""
    stopped = threading.Event()
    work = partial(open_sound, source, bins, max_seconds=max_seconds, stopped=stopped)
    try:
        return await asyncio.get_running_loop().run_in_executor(_threads, work)
    finally:
        stopped.set()


def _read(
    source: _Bytes | _File, bins: int, max_seconds: float, stopped: threading.Event | None
) -> SoundFile:
    written = _Spectrum(bins, stopped)
    try:
        num_samples = spectrum(source, bins, max_seconds, written.take)
        return SoundFile(written.file, bins, num_samples, written.peak)
    except BaseException:
        written.file.close()
        raise
