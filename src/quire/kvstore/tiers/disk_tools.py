"""What tools do with a directory of chunks, whether engines use it or not.

An engine notices within seconds what was removed here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from quire.kvstore.chunk_file import ChunkError, decode, read_header
from quire.kvstore.eviction import ByteLru, Entry
from quire.kvstore.tiers import disk_files
from quire.kvstore.tiers.disk_files import StoredFile
from quire.kvstore.tiers.disk_ledger import locked
from quire.kvstore.tiers.disk_paths import tier_errors


def stored_files(root: Path) -> list[StoredFile]:
    """All chunks, the least recently used one first; none where there is no such directory."""
    return sorted(disk_files.scan(root), key=lambda file: file.used_ns)


def verify(root: Path, file: StoredFile) -> ChunkError | None:
    """Reads a chunk and says what is wrong with it. One that is gone is not wrong.

    Raises TierError if it cannot be read.
    """
    with tier_errors(root, "read"):
        chunk = disk_files.read(root, file.entry, file.num_bytes)
    if chunk is None:
        return None
    try:
        header = read_header(chunk)
        if Entry(header.key.folder, header.key.name) != file.entry:
            return ChunkError("key", "the chunk of another file")
        decode(chunk, header.key, header.shape)
    except ChunkError as error:
        return error
    return None


def remove(root: Path, entries: Iterable[Entry]) -> int:
    """Removes chunks; returns the bytes that are free now. Raises TierError."""
    num_bytes = 0
    with tier_errors(root, "removed"), locked(root) as ledger:
        for entry in entries:
            removed = disk_files.remove(root, entry)
            ledger.add(-removed)
            num_bytes += removed
    return num_bytes


def prune(root: Path, max_bytes: int, ttl_s: float | None = None) -> list[Entry]:
    """Removes what nobody has used for `ttl_s`, and then the least recently used chunks, until
    those that are left have `max_bytes` at most. Returns what was removed. Raises TierError."""
    books = ByteLru(max_bytes, ttl_s=ttl_s)
    for file in stored_files(root):
        books.put(file.entry, file.num_bytes, file.used_ns)
    removed = books.make_room("", 0, time.time_ns()) or []
    if removed:
        remove(root, removed)
    return removed
