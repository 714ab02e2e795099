"""Inspects and cleans up a directory of chunk files, also while engines use it.

Called by `quire kv`. Functions raise OSError. Files that are not chunk files are never touched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from quire.kvstore.chunk_file import ChunkError, ChunkErrorKind, decode, read_header
from quire.kvstore.eviction import Entry
from quire.kvstore.tiers import disk_files
from quire.kvstore.tiers.disk_files import StoredFile
from quire.kvstore.tiers.disk_ledger import locked
from quire.units import GiB

_MAX_FILE_BYTES = GiB
"""Far more than any chunk has. Larger files are not read."""


@dataclass(slots=True)
class FolderUsage:
    """Usage of the chunks of one model and one tenant."""

    name: str
    num_chunks: int = 0
    num_bytes: int = 0
    first_used_ns: int = 0
    """Last use of the least recently used chunk; nanoseconds since 1970."""
    last_used_ns: int = 0


def folders(root: Path) -> list[FolderUsage]:
    """Return the usage of all folders, most recently used first."""
    found: dict[str, FolderUsage] = {}
    for file in disk_files.scan(root):
        folder = found.setdefault(file.entry.folder, FolderUsage(file.entry.folder))
        folder.num_chunks += 1
        folder.num_bytes += file.num_bytes
        folder.first_used_ns = min(folder.first_used_ns or file.used_ns, file.used_ns)
        folder.last_used_ns = max(folder.last_used_ns, file.used_ns)
    return sorted(found.values(), key=lambda folder: -folder.last_used_ns)


@dataclass(frozen=True, slots=True)
class BrokenFile:
    """A file that is not a valid chunk or does not match its name."""

    entry: Entry
    kind: ChunkErrorKind
    message: str


def check(root: Path, file: StoredFile) -> BrokenFile | None:
    """Read a chunk file and verify its checksum. None: it is valid or was removed."""
    if file.num_bytes > _MAX_FILE_BYTES:
        return BrokenFile(file.entry, "size", f"{file.num_bytes} bytes are too many for a chunk")
    data = disk_files.read(root, file.entry, _MAX_FILE_BYTES)
    if data is None:
        return None
    try:
        header = read_header(data)
        if (header.key.folder, header.key.name) != file.entry:
            raise ChunkError("key", "the name of the file does not match its chunk")
        decode(data, header.key, header.shape)
    except ChunkError as error:
        return BrokenFile(file.entry, error.kind, str(error))
    return None


def remove(root: Path, entries: Collection[Entry]) -> int:
    """Remove chunk files and abandoned unfinished files. Returns the bytes of the removed
    chunks."""
    num_bytes = 0
    with locked(root) as ledger:
        disk_files.remove_abandoned(root)
        for entry in entries:
            removed = disk_files.remove(root, entry)
            ledger.add(-removed)
            num_bytes += removed
    return num_bytes


def chosen(
    files: Collection[StoredFile],
    *,
    folder: str = "",
    unused_since_ns: int | None = None,
    max_bytes: int | None = None,
) -> Iterator[Entry]:
    """Yield the chunks to remove, among files in folders whose names begin with `folder`: first
    those not used since `unused_since_ns`, then the least recently used ones until `max_bytes`
    remain. All chunks if neither is given."""
    mine = [file for file in files if file.entry.folder.startswith(folder)]
    if unused_since_ns is None and max_bytes is None:
        max_bytes = 0
    left = sum(file.num_bytes for file in mine)
    for file in sorted(mine, key=lambda file: file.used_ns):
        is_old = unused_since_ns is not None and file.used_ns < unused_since_ns
        if is_old or (max_bytes is not None and left > max_bytes):
            left -= file.num_bytes
            yield file.entry
