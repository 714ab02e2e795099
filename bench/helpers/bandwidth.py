"""Memory bandwidth of this machine, measured without a compiler: libc's memchr over a large buffer
that does not hold the byte, on every thread at once (ctypes releases the GIL)."""

from __future__ import annotations

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

BUFFER_BYTES = 256 * 1024 * 1024
"""Per thread; far more than any cache."""


@dataclass(frozen=True)
class Bandwidth:
    """Bytes per second read by all threads together."""

    sustained: float
    """All that was read, by all the time it took: what another long reading can be held against."""
    best: float
    """In the best pass over the buffers, a few milliseconds."""


def read_bandwidth(threads: int, seconds: float = 0.8) -> Bandwidth:
    """Reads as fast as it can, for some time."""
    libc = ctypes.CDLL(None)
    libc.memchr.restype = ctypes.c_void_p
    libc.memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    buffers = [ctypes.create_string_buffer(BUFFER_BYTES) for _ in range(threads)]
    for buffer in buffers:
        ctypes.memset(buffer, 1, BUFFER_BYTES)

    def scan(buffer: ctypes.Array[ctypes.c_char]) -> None:
        if libc.memchr(buffer, 0xFF, BUFFER_BYTES) is not None:
            raise RuntimeError("the buffer holds a byte that was not written")

    passes: list[float] = []
    with ThreadPoolExecutor(threads) as pool:
        end = time.perf_counter() + seconds
        while not passes or time.perf_counter() < end:
            begin = time.perf_counter()
            list(pool.map(scan, buffers))
            passes.append(time.perf_counter() - begin)
    size = threads * BUFFER_BYTES
    return Bandwidth(len(passes) * size / sum(passes), size / min(passes))
