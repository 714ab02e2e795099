"""Looks at a directory of chunk files and cleans it up, also while engines use it.

Called by `quire kv`. Functions raise OSError. What is no chunk file is never touched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from quire.kvstore.chunk_file import ChunkError, ChunkErrorKind, decode, read_header
from quire.kvstore.chunks import ChunkKey
from quire.kvstore.eviction import Entry
from quire.kvstore.tiers import disk_files
from quire.kvstore.tiers.base import Buffer
from quire.kvstore.tiers.disk_files import StoredFile
from quire.kvstore.tiers.disk_ledger import locked
from quire.units import GiB

MAX_FILE_BYTES = GiB
"""Far more than any chunk has: larger files are not read."""


@dataclass(slots=True)
class FolderUsage:
    """The chunks of one model and one tenant."""

    name: str
    num_chunks: int = 0
    num_bytes: int = 0
    first_used_ns: int = 0
    """When the chunk was used that nobody has used for longest; nanoseconds since 1970."""
    last_used_ns: int = 0


def folders(root: Path) -> list[FolderUsage]:
    """The most recently used one first."""
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
    """A file that holds no chunk, or another one than its name says."""

    entry: Entry
    kind: ChunkErrorKind
    message: str


def check(root: Path, file: StoredFile) -> BrokenFile | None:
    """Reads a chunk file and compares all of it with its checksum. None: it is sound, or gone."""
    if file.num_bytes > MAX_FILE_BYTES:
        return BrokenFile(file.entry, "size", f"{file.num_bytes} bytes are more than any chunk has")
    data = disk_files.read(root, file.entry, MAX_FILE_BYTES)
    if data is None:
        return None
    try:
        checked_key(file.entry, data)
    except ChunkError as error:
        return BrokenFile(file.entry, error.kind, str(error))
    return None


def checked_key(entry: Entry, data: Buffer) -> ChunkKey:
    """The key of an encoded chunk of this name. Raises ChunkError unless it is whole and has it."""
    header = read_header(data)
    if (header.key.folder, header.key.name) != entry:
        raise ChunkError("key", "the file has the name of another chunk")
    decode(data, header.key, header.shape)
    return header.key


def remove(root: Path, entries: Collection[Entry]) -> int:
    """Removes chunk files, and what writers have left who are gone. Returns the bytes of the
    chunks that were removed."""
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
    """What to remove: of the files in folders whose names begin with `folder`, those that nobody
    has used since then; then the least recently used ones, until the rest has `max_bytes`. All, if
    neither is given."""
    mine = [file for file in files if file.entry.folder.startswith(folder)]
    if unused_since_ns is None and max_bytes is None:
        max_bytes = 0
    left = sum(file.num_bytes for file in mine)
    for file in sorted(mine, key=lambda file: file.used_ns):
        is_old = unused_since_ns is not None and file.used_ns < unused_since_ns
        if is_old or (max_bytes is not None and left > max_bytes):
            left -= file.num_bytes
            yield file.entry
