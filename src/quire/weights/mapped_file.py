"""`MappedFile`: a read-only memory mapping with bounds-checked slices and paging hints.

Used by every checkpoint reader; independent of file formats. If another process truncates the file
or the disk fails, access to a page fails and the kernel ends the process by SIGBUS. With a
`PageGuard`, which the native library provides, the page reads as zeros instead, and
`MappedFile.check` raises.
"""

from __future__ import annotations

import mmap
import os
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError

_MADV_HUGEPAGE = 14
_MADV_POPULATE_READ = 22
"""Values of Linux. Python's mmap lacks the second, and in some builds the first."""
_CHECK_INTERVAL_S = 1.0
"""Minimum time between two checks of a file's size and modification time."""
_SAME_TIME_S = 2.0
"""Modification times that differ by at most this are equal: FAT rounds them to 2 s, sometimes after
the write."""


class PageGuard(Protocol):
    """Replaces pages that cannot be read by zeros."""

    def watch(self, data: NDArray[np.uint8], name: str) -> int:
        """Starts to guard a mapping of the file `name`. Returns the mapping's slot in the guard."""

    def forget(self, slot: int) -> None:
        """Stops guarding; call it before the mapping is removed."""

    def fault(self, slot: int) -> int | None:
        """Offset of the first byte that could not be read and now reads as zero; None: no fault."""


_guard: PageGuard | None = None


def use_guard(guard: PageGuard) -> None:
    """Guards every mapping created after this call, in the whole process."""
    global _guard
    _guard = guard


class MappedFile:
    """A mapped file: the kernel reads a page when it is first accessed.

    Slices are read-only views of the mapping and keep it alive. Results computed from slices are
    valid only if `check` does not raise afterwards.
    """

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError for a file that is missing, empty, or not a regular file."""
        self.path = path
        self._descriptor = _open(path)
        weakref.finalize(self, os.close, self._descriptor).atexit = False
        self._opened = self._stat()
        self._map = _map(path, self._descriptor, self._opened.st_size)
        self.data: NDArray[np.uint8] = np.frombuffer(self._map, dtype=np.uint8)
        self._guard = _guard
        self._slot = -1
        if self._guard is not None:
            self._slot = self._guard.watch(self.data, str(path))
            # Every view keeps `data` alive, and so the mapping and its slot.
            weakref.finalize(self.data, self._guard.forget, self._slot).atexit = False
        self._next_check_s = 0.0

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return len(self.data)

    def slice(self, offset: int, length: int) -> NDArray[np.uint8]:
        """View of `length` bytes from `offset`. Raises CheckpointError if they are not all in the
        file."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise CheckpointError(
                f"{self.path}: bytes {offset} to {offset + length} lie outside the file, "
                f"which has {self.size} bytes; it may be truncated"
            )
        return self.data[offset : offset + length]

    def bytes(self, offset: int, length: int) -> bytes:
        """Same range as `slice`, but read with a system call instead of through the mapping. Also
        raises if the file was truncated since it was opened."""
        wanted = len(self.slice(offset, length))
        read = b""
        while len(read) < wanted:
            try:
                piece = os.pread(self._descriptor, wanted - len(read), offset + len(read))
            except OSError as error:
                raise CheckpointError(f"{self.path}: cannot be read: {error.strerror}") from None
            if not piece:
                raise CheckpointError(f"{self.path}: the file was cut short while it was read")
            read += piece
        return read

    def check(self) -> None:
        """Raises CheckpointError if the file changed since it was opened, or could not be read.

        Call it after each use of slices. A page that could not be read is reported at once; the
        file's size and modification time are checked in the first call and then at most once a
        second.
        """
        fault = None
        if self._guard is not None:
            fault = self._guard.fault(self._slot)
        time_s = time.monotonic()
        is_due = time_s >= self._next_check_s
        if is_due:
            self._next_check_s = time_s + _CHECK_INTERVAL_S
        if fault is not None or (is_due and self._has_changed()):
            raise CheckpointError(self._changed_text(fault))

    def release(self, offset: int, length: int) -> None:
        """Drops the pages of a range from the resident set; the next access reads them again."""
        begin, span = self._whole_pages(offset, length)
        if span > 0:
            self._map.madvise(mmap.MADV_DONTNEED, begin, span)

    def prefetch(self) -> None:
        """Asks the kernel to read the file in the background."""
        self._map.madvise(mmap.MADV_WILLNEED)

    def populate(self, offset: int, length: int) -> None:
        """Brings a range into memory and into this process's page tables.

        Uses huge pages if the file system supports them (ext4, xfs, tmpfs).
        """
        if not length:
            return
        begin, span = self._whole_pages(offset, length)
        with suppress(OSError):  # not every kernel or file system supports this hint
            self._map.madvise(_MADV_HUGEPAGE, begin, span)
        try:
            self._map.madvise(_MADV_POPULATE_READ, begin, span)
        except OSError:  # before Linux 5.14, or a page that cannot be read
            self._map.madvise(mmap.MADV_WILLNEED, begin, span)

    def _whole_pages(self, offset: int, length: int) -> tuple[int, int]:
        """The page-aligned range that contains these bytes. Dropping a page that other tensors
        share is harmless."""
        begin = offset - offset % mmap.PAGESIZE
        return begin, min(offset + length, self.size) - begin

    def _stat(self) -> os.stat_result:
        try:
            return os.fstat(self._descriptor)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be read: {error.strerror}") from None

    def _has_changed(self) -> bool:
        stat = self._stat()
        difference_s = abs(stat.st_mtime - self._opened.st_mtime)
        return stat.st_size != self._opened.st_size or difference_s > _SAME_TIME_S

    def _changed_text(self, fault: int | None) -> str:
        size = self._stat().st_size
        if size < self.size:
            what = f"the file was cut short while in use, from {self.size} bytes to {size}"
        elif fault is not None:
            what = f"byte {fault} could not be read: the file was cut short, or its disk fails"
        else:
            what = "the file was written to while in use"
        return f"{self.path}: {what}. Restore it and load the model again"


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be opened: {error.strerror}") from None


def _map(path: Path, descriptor: int, size: int) -> mmap.mmap:
    if size == 0:
        raise CheckpointError(f"{path}: the file is empty")
    try:
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be mapped: {error}") from None
