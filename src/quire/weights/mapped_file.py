"""`MappedFile`: a read-only memory mapping with bounds-checked slices and paging hints.

Used by every checkpoint reader. Knows no format.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError

_MADV_HUGEPAGE = 14
_MADV_POPULATE_READ = 22
"""Of Linux; Python's mmap does not name the second, nor always the first."""


class MappedFile:
    """A file's bytes without reading it: pages come in as they are touched.

    Slices are views of the mapping and keep it alive; the mapping is read-only, so no slice
    can be written. A file that is truncated by others while mapped faults, as with any mapping.
    """

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError for a file that is missing, empty, or no regular file."""
        self.path = path
        self._map = _map_file(path)
        self.data: NDArray[np.uint8] = np.frombuffer(self._map, dtype=np.uint8)

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return len(self.data)

    def slice(self, offset: int, length: int) -> NDArray[np.uint8]:
        """`length` bytes from `offset`, as a view. Raises CheckpointError outside the file."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise CheckpointError(
                f"{self.path}: bytes {offset} to {offset + length} lie outside the file, "
                f"which has {self.size}; it may be truncated"
            )
        return self.data[offset : offset + length]

    def bytes(self, offset: int, length: int) -> bytes:
        """As `slice`, copied."""
        return self.slice(offset, length).tobytes()

    def release(self, offset: int, length: int) -> None:
        """Drops the pages of a range from the resident set; touching them reads them again."""
        begin, span = self._whole_pages(offset, length)
        if span > 0:
            self._map.madvise(mmap.MADV_DONTNEED, begin, span)

    def prefetch(self) -> None:
        """Asks the kernel to read the file ahead, in the background."""
        self._map.madvise(mmap.MADV_WILLNEED)

    def populate(self) -> None:
        """Brings the whole file into memory and into this process's page tables.

        In huge pages where the file system keeps files in such (ext4, xfs and tmpfs may).
        """
        with suppress(OSError):  # a hint that this kernel or file system does not know
            self._map.madvise(_MADV_HUGEPAGE)
        try:
            self._map.madvise(_MADV_POPULATE_READ)
        except OSError:  # before Linux 5.14
            self.prefetch()

    def _whole_pages(self, offset: int, length: int) -> tuple[int, int]:
        """The page-aligned range around these bytes: to drop a neighbour's page is harmless."""
        begin = offset - offset % mmap.PAGESIZE
        return begin, min(offset + length, self.size) - begin


def _map_file(path: Path) -> mmap.mmap:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be opened: {error.strerror}") from None
    try:
        size = os.fstat(descriptor).st_size
        if size == 0:
            raise CheckpointError(f"{path}: the file is empty")
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be mapped: {error}") from None
    finally:
        os.close(descriptor)
