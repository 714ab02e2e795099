"""A thread that allocates all the time does not share the heap, and so the lock, of the others."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import ctypes, threading
from quire.system.free_memory import bound_free_memory
bound_free_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
HEAP = ~(64 * 2**20 - 1)  # heaps of threads are aligned to their size
heaps = [libc.malloc(100) & HEAP]
barrier = threading.Barrier(9)

def allocate():
    heaps.append(libc.malloc(100) & HEAP)
    barrier.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
barrier.wait()
print(len(set(heaps)))
"""


def test_each_thread_has_a_heap_of_its_own() -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("glibc's heaps")
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=120
    )
    assert int(done.stdout) == 9
