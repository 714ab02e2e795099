"""Disks that are full, broken or slow: what takes the place of `os.preadv` and `os.pwritev`."""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable, Sequence

Vectored = Callable[[int, Sequence[memoryview], int], int]


def failing(code: int, chance: float) -> Callable[[Vectored], Vectored]:
    """Calls of the system that fail at times."""
    choose = random.Random(5)

    def around(call: Vectored) -> Vectored:
        def fails(descriptor: int, views: Sequence[memoryview], offset: int) -> int:
            if choose.random() < chance:
                raise OSError(code, os.strerror(code))
            return call(descriptor, views, offset)

        return fails

    return around


def slow(bytes_per_s: float) -> Callable[[Vectored], Vectored]:
    """Calls that take as long as on a disk of that speed."""

    def around(call: Vectored) -> Vectored:
        def sleeps(descriptor: int, views: Sequence[memoryview], offset: int) -> int:
            time.sleep(sum(view.nbytes for view in views) / bytes_per_s)
            return call(descriptor, views, offset)

        return sleeps

    return around


FAULTS: dict[str, dict[str, Callable[[Vectored], Vectored]]] = {
    "full": {"pwritev": failing(errno.ENOSPC, 1.0)},
    "full at times": {"pwritev": failing(errno.ENOSPC, 0.3)},
    "broken": {"pwritev": failing(errno.EIO, 0.3), "preadv": failing(errno.EIO, 0.3)},
    "unreadable": {"preadv": failing(errno.EIO, 1.0)},
    "10 MB/s": {"pwritev": slow(10e6), "preadv": slow(10e6)},
    "10 kB/s": {"pwritev": slow(10e3), "preadv": slow(10e3)},
}
