"""The C library's heap: what the server has freed goes back to the system.

glibc alone has these functions; with another C library they do nothing.
"""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8  # malloc.h
_LIBC = ctypes.CDLL(None)


def use_one_arena() -> None:
    """For a process that is a server alone, before it starts threads.

    glibc gives each thread a heap of its own, and keeps what is free at its end: up to twice the
    largest block that was ever freed, which is as much as the largest body. `trim` reaches the end
    of the first heap only, so all threads use that one.
    """
    mallopt = getattr(_LIBC, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def trim() -> None:
    """Returns free memory to the system. Takes some milliseconds for each 100 MiB."""
    malloc_trim = getattr(_LIBC, "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
