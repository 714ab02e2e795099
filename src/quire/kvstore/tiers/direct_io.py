"""Reads and writes files without the page cache of the system (O_DIRECT), where supported.

Writing a chunk through the page cache costs many times the processor time of copying it: the system
allocates new pages, and copies again when it writes them back. The models need these cores. The
functions raise OSError.
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
"""Alignment of file offsets and of memory for direct I/O. All usual disks accept it."""
_HUGE_PAGE = 2 << 20
_local = threading.local()


def page_memory(num_bytes: int) -> memoryview:
    """Allocate page-aligned memory, in huge pages if possible: allocating small pages takes longer
    than their use."""
    unit = _HUGE_PAGE if num_bytes >= _HUGE_PAGE else _ALIGNMENT
    length = max(unit, ceil_div(num_bytes, unit) * unit)
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # the system has no huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)[:num_bytes]


def write(descriptor: int, parts: Sequence[Buffer]) -> None:
    """Write a whole file that is empty or already has its final size. The file never gets longer
    than its final size."""
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
    """Return the first `num_bytes` of a file; fewer if it is shorter. `into`: memory from
    `page_memory`, used if it is long enough."""
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
    """Switch O_DIRECT on or off. False: the file system does not support it."""
    try:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | (os.O_DIRECT if on else 0))
    except OSError:
        return False
    return True


def _is_aligned(view: memoryview) -> bool:
    """Whether the memory is page-aligned and writable."""
    if view.readonly or not view.contiguous:
        return False
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) % _ALIGNMENT == 0


def _joined(views: list[memoryview], num_bytes: int) -> memoryview:
    """Return a page-aligned copy."""
    scratch, end = _scratch(num_bytes), 0
    for view in views:
        scratch[end : end + view.nbytes] = view
        end += view.nbytes
    return scratch


def _scratch(num_bytes: int) -> memoryview:
    """Return page-aligned memory of this thread, which its next write reuses."""
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
