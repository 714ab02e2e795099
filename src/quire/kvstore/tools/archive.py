"""Export and import of chunks as a tar file, to move them to another machine.

Called by `quire kv`. Each chunk follows a member `<folder>/<name>.sig`, the signature of the store
that exported it (`signature.py`). An archive is not trusted: its members must be plain files of
bounded size with valid chunk names. Each chunk must be complete, match its name and be signed by a
store whose secret is known. Chunks are only written through the tier. Archives are not compressed,
so an import never expands to more than the file's size.
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
from quire.kvstore.tools.signature import NUM_DIGITS, is_signed, sign

_MEMBER = re.compile(r"([0-9a-f]{32})/([0-9a-f]{64}-(?:0|[1-9][0-9]{0,5}))\.(kv|sig)")
_BLOCK = tarfile.BLOCKSIZE


@dataclass(slots=True)
class Moved:
    """Numbers of moved chunks and of damaged ones, which were skipped."""

    num_chunks: int = 0
    num_bytes: int = 0
    num_broken: int = 0


def export_chunks(root: Path, files: Iterable[StoredFile], out: BinaryIO, secret: bytes) -> Moved:
    """Write an archive of the undamaged files, signed with `secret`. Raises OSError."""
    moved = Moved()
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.USTAR_FORMAT) as archive:
        for file in files:
            data = disk_files.read(root, file.entry, MAX_FILE_BYTES)
            if data is None or not _is_sound(file.entry, data):
                moved.num_broken += data is not None
                continue
            signature = sign(secret, file.entry, data).encode()
            for ending, content in (("sig", signature), ("kv", data)):
                member = tarfile.TarInfo(f"{file.entry.folder}/{file.entry.name}.{ending}")
                member.size, member.mode, member.mtime = len(content), 0o600, file.used_ns // 10**9
                archive.addfile(member, io.BytesIO(content))
            moved.num_chunks += 1
            moved.num_bytes += len(data)
    return moved


def import_chunks(
    source: BinaryIO, tier: Tier, max_bytes: int, *, secret: bytes | None, trusts_all: bool
) -> Moved:
    """Write the chunks of an archive to a tier, at most `max_bytes` of them.

    `secret`: secret of the store. `trusts_all`: do not require signatures. Raises ConfigError if
    the file is not an archive of chunks or a chunk is not signed by this store; TierError if the
    tier fails.
    """
    moved = Moved()
    signatures: dict[Entry, str] = {}
    """The signature of the next chunk."""
    while (member := _next_member(source)) is not None:
        match = _MEMBER.fullmatch(member.name)
        is_signature = match is not None and match[3] == "sig"
        is_known = member.type == tarfile.REGTYPE and (
            not is_signature or member.size == NUM_DIGITS
        )
        if match is None or not is_known:
            raise ConfigError(
                f"the archive contains {quoted(member.name)}, which is not a chunk; make one with "
                "quire kv export"
            )
        if member.size > min(MAX_FILE_BYTES, max_bytes - moved.num_bytes):
            raise ConfigError(
                f"the archive has more than {max_bytes} bytes of chunks; the rest was not "
                "imported; give --max-size"
            )
        entry, data = Entry(match[1], match[2]), _read(source, member.size)
        _read(source, -member.size % _BLOCK)
        if is_signature:
            signatures = {entry: data.decode("ascii", "replace")}
            continue
        if not _is_sound(entry, data):
            moved.num_broken += 1
            continue
        if not trusts_all and not is_signed(secret, entry, data, signatures.get(entry)):
            raise ConfigError(_not_signed(entry))
        tier.write(checked_key(entry, data), [data])
        moved.num_chunks += 1
        moved.num_bytes += len(data)
    return moved


def _not_signed(entry: Entry) -> str:
    return (
        f"this store has not signed the chunk {entry.folder}/{entry.name}: the archive comes from "
        "another store, or was changed. Wrong K/V gives wrong answers. Use --trust if "
        "you trust everyone who can have written the archive, or copy the file `secret` of the "
        "other store into this store's directory"
    )


def _next_member(source: BinaryIO) -> tarfile.TarInfo | None:
    """Read the next header that is not a directory. None: end of the archive."""
    while True:
        block = source.read(_BLOCK)
        if block == bytes(len(block)):
            return None
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError) as error:
            raise ConfigError(f"this is not an archive of chunks: {error}") from None
        if member.size < 0:
            raise ConfigError("this is not an archive of chunks: a size is negative")
        if member.type != tarfile.DIRTYPE:
            return member


def _read(source: BinaryIO, num_bytes: int) -> bytes:
    data = source.read(num_bytes)
    if len(data) != num_bytes:
        raise ConfigError("the archive is truncated; the chunks before this point were imported")
    return data


def _is_sound(entry: Entry, data: Buffer) -> bool:
    try:
        checked_key(entry, data)
    except ChunkError:
        return False
    return True
