"""Returns free memory of the C library's heap to the system.

glibc keeps most of the memory that a burst of connections, a large body or a model has used,
because the heap is fragmented; `malloc_trim` returns it. With another C library nothing is done.
"""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8  # malloc.h


def use_one_arena() -> None:
    """Makes all threads allocate from one heap. Called before the first thread starts.

    By default glibc gives threads heaps of their own. Each keeps up to twice the size of the
    largest freed block at its end, and `malloc_trim` returns the end of the first heap only.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def release_free_memory() -> None:
    """Calls `malloc_trim`, which can take some milliseconds. Any thread may call it."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
