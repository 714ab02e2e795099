"""Chunks in a tar file, to take them to another machine.

Called by `quire kv`. An archive is not trusted: its members have to be plain files with the names
of chunks, of bounded size, each whole and of the name that it has. Nothing is written to any other
place than a tier writes to. No compression, so that no archive is larger than its file.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from quire.errors import ConfigError, quoted
from quire.kvstore.chunk_file import ChunkError
from quire.kvstore.eviction import Entry
from quire.kvstore.tiers import disk_files
from quire.kvstore.tiers.base import Buffer, Tier
from quire.kvstore.tiers.disk_files import StoredFile
from quire.kvstore.tools.directory import MAX_FILE_BYTES, checked_key

_MEMBER = re.compile(r"([0-9a-f]{32})/([0-9a-f]{64}-(?:0|[1-9][0-9]{0,5}))\.kv")
_BLOCK = tarfile.BLOCKSIZE


@dataclass(slots=True)
class Moved:
    """What was written, and what was left out because it is damaged."""

    num_chunks: int = 0
    num_bytes: int = 0
    num_broken: int = 0


def export_chunks(root: Path, files: Iterable[StoredFile], out: BinaryIO) -> Moved:
    """Writes an archive of the files that are sound. Raises OSError."""
    moved = Moved()
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.USTAR_FORMAT) as archive:
        for file in files:
            data = disk_files.read(root, file.entry, MAX_FILE_BYTES)
            if data is None or not _is_sound(file.entry, data):
                moved.num_broken += data is not None
                continue
            member = tarfile.TarInfo(f"{file.entry.folder}/{file.entry.name}.kv")
            member.size, member.mode, member.mtime = len(data), 0o600, file.used_ns // 10**9
            archive.addfile(member, io.BytesIO(data))
            moved.num_chunks += 1
            moved.num_bytes += len(data)
    return moved


def import_chunks(source: BinaryIO, tier: Tier, max_bytes: int) -> Moved:
    """Writes the chunks of an archive to a tier, at most `max_bytes` of them.

    Raises ConfigError for what is no archive of chunks, TierError where the tier does.
    """
    moved = Moved()
    while (member := _next_member(source)) is not None:
        match = _MEMBER.fullmatch(member.name)
        if match is None or member.type != tarfile.REGTYPE:
            raise ConfigError(
                f"the archive holds {quoted(member.name)}, which is no chunk; make one with "
                "quire kv export"
            )
        if member.size > min(MAX_FILE_BYTES, max_bytes - moved.num_bytes):
            raise ConfigError(
                f"the archive has more than {max_bytes} bytes of chunks; the rest was left out: "
                "give --max-size"
            )
        entry, data = Entry(match[1], match[2]), _read(source, member.size)
        _read(source, -member.size % _BLOCK)
        if not _is_sound(entry, data):
            moved.num_broken += 1
            continue
        tier.write(checked_key(entry, data), [data])
        moved.num_chunks += 1
        moved.num_bytes += len(data)
    return moved


def _next_member(source: BinaryIO) -> tarfile.TarInfo | None:
    """The next header; directories are passed over. None: the archive ends."""
    while True:
        block = source.read(_BLOCK)
        if block == bytes(len(block)):
            return None
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError) as error:
            raise ConfigError(f"this is no archive of chunks: {error}") from None
        if member.size < 0:
            raise ConfigError("this is no archive of chunks: a size is negative")
        if member.type != tarfile.DIRTYPE:
            return member


def _read(source: BinaryIO, num_bytes: int) -> bytes:
    data = source.read(num_bytes)
    if len(data) != num_bytes:
        raise ConfigError("the archive is cut short; what came before is written")
    return data


def _is_sound(entry: Entry, data: Buffer) -> bool:
    try:
        checked_key(entry, data)
    except ChunkError:
        return False
    return True
