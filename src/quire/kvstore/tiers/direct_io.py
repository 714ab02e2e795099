"""Reads and writes files past the page cache of the system, where the file system can.

A chunk that is written through the page cache costs the processor many times what copying it does:
the system makes new pages for it, and copies it again when it writes them back. The cores are what
models need. The functions raise OSError.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Sequence
from contextlib import suppress

from quire.kvstore.tiers.base import Buffer
from quire.units import ceil_div

_ALIGNMENT = 4096
"""Of places in files and memory: no less is allowed by any usual disk."""
_HUGE_PAGE = 2 << 20
_local = threading.local()


def page_memory(num_bytes: int) -> memoryview:
    """New memory that begins with a page, in pages as large as the system gives: with small ones,
    making them takes longer than what is done with them."""
    unit = _HUGE_PAGE if num_bytes >= _HUGE_PAGE else _ALIGNMENT
    length = max(unit, ceil_div(num_bytes, unit) * unit)
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)[:num_bytes]


def write(descriptor: int, parts: Sequence[Buffer]) -> None:
    """All of a file that is empty, or has its size already. It is never longer meanwhile."""
    views = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
    num_bytes = sum(view.nbytes for view in views)
    num_direct = num_bytes - num_bytes % _ALIGNMENT
    if not num_direct or not _set_direct(descriptor):
        _write_all(descriptor, views)
        return
    whole = views[0] if len(views) == 1 and _is_aligned(views[0]) else _joined(views, num_bytes)
    try:
        _write_all(descriptor, [whole[:num_direct]])
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        num_direct = 0
    if num_direct < num_bytes:
        _set_direct(descriptor, on=False)
        _write_all(descriptor, [whole[num_direct:num_bytes]], num_direct)


def read(descriptor: int, num_bytes: int, into: memoryview | None = None) -> memoryview:
    """The first `num_bytes` of a file; fewer if it is shorter. `into`: memory of `page_memory`,
    which is used if it is long enough."""
    length = _rounded(num_bytes)
    view = page_memory(length) if into is None or len(into) < length else into[:length]
    is_direct, end = _set_direct(descriptor), 0
    while end < num_bytes:
        try:
            count = os.preadv(descriptor, [view[end:]], end)
        except OSError as error:
            if error.errno != errno.EINVAL or not is_direct:
                raise
            is_direct = not _set_direct(descriptor, on=False)
            continue
        if not count:
            break
        end += count
        if is_direct and end % _ALIGNMENT:
            is_direct = not _set_direct(descriptor, on=False)
    return view[: min(end, num_bytes)]


def _set_direct(descriptor: int, *, on: bool = True) -> bool:
    """False: the file system does not offer it."""
    try:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | (os.O_DIRECT if on else 0))
    except OSError:
        return False
    return True


def _is_aligned(view: memoryview) -> bool:
    """Whether it begins with a page."""
    if view.readonly or not view.contiguous:
        return False
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) % _ALIGNMENT == 0


def _joined(views: list[memoryview], num_bytes: int) -> memoryview:
    """A copy that begins with a page."""
    scratch, end = _scratch(num_bytes), 0
    for view in views:
        scratch[end : end + view.nbytes] = view
        end += view.nbytes
    return scratch


def _scratch(num_bytes: int) -> memoryview:
    """Memory of this thread at the begin of a page, used again by its next write."""
    found: memoryview | None = getattr(_local, "scratch", None)
    if found is None or found.nbytes < num_bytes:
        found = _local.scratch = page_memory(_rounded(num_bytes))
    return found


def _rounded(num_bytes: int) -> int:
    return ceil_div(num_bytes, _ALIGNMENT) * _ALIGNMENT


def _write_all(descriptor: int, views: list[memoryview], offset: int = 0) -> None:
    while views:
        written = os.pwritev(descriptor, views, offset)
        offset += written
        while views and written >= views[0].nbytes:
            written -= views.pop(0).nbytes
        if views:
            views[0] = views[0][written:]
