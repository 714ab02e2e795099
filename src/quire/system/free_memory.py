"""Returns free memory of the C library's heap to the system.

glibc keeps most of the memory that a burst of connections, a large body or a model has used,
because the heap is fragmented; `malloc_trim` returns it. With another C library nothing is done.
"""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_KEPT_BYTES = 1 << 20
_MAX_ARENAS = 32
"""More than the number of threads of a server that allocate memory."""


def bound_free_memory() -> None:
    """Limits what the heaps of threads keep. Called before the first thread starts.

    Each thread has its own heap. With one heap for all threads, the event loop would wait for its
    unfair lock: for tenths of a second while another thread tokenizes a large text.
    By default a heap keeps twice the size of the largest freed block at its end, which
    `malloc_trim` does not return; here it keeps a fixed size.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _MAX_ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def release_free_memory() -> None:
    """Calls `malloc_trim`, which can take some milliseconds. Any thread may call it."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def libc_version() -> str:
    """Name and version, as `glibc 2.36`; "" if unknown."""
    if "CS_GNU_LIBC_VERSION" not in os.confstr_names:
        return ""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        return ""
