"""What tools do with a directory of chunks: list, verify, remove, prune."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from quire.kvstore.chunk_file import encode
from quire.kvstore.chunks import ChunkKey, ChunkShape
from quire.kvstore.eviction import Entry
from quire.kvstore.tiers.base import TierError
from quire.kvstore.tiers.disk import DiskTier
from quire.kvstore.tiers.disk_ledger import locked
from quire.kvstore.tiers.disk_paths import path_of
from quire.kvstore.tiers.disk_tools import prune, remove, stored_files, verify

SHAPE = ChunkShape(num_blocks=1, block_bytes=904)
SIZE = 5000


def key_of(number: int) -> ChunkKey:
    return ChunkKey(bytes(32), number.to_bytes(32, "big"), 0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Chunks 0 to 4, the higher ones used longer ago, by a minute each."""
    tier = DiskTier(tmp_path, 100 * SIZE)
    for number in range(5):
        key = key_of(number)
        tier.write(key, encode(key, SHAPE, bytes([number]) * 904))
    tier.close()
    for number in range(5):
        used = time.time() - 60 * number
        os.utime(path_of(tmp_path, entry(number)), (used, used))
    return tmp_path


def entry(number: int) -> Entry:
    return Entry(key_of(number).folder, key_of(number).name)


def test_all_are_listed_by_use(root: Path) -> None:
    files = stored_files(root)
    assert [file.entry for file in files] == [entry(number) for number in (4, 3, 2, 1, 0)]
    assert {file.num_bytes for file in files} == {SIZE}
    assert abs(files[0].used_ns / 1e9 - (time.time() - 240)) < 60
    assert stored_files(root / "nowhere") == []


def test_verify_finds_what_is_wrong(root: Path) -> None:
    flipped, cut, swapped, gone, whole = (path_of(root, entry(number)) for number in range(5))
    content = bytearray(flipped.read_bytes())
    content[-1] ^= 1
    flipped.write_bytes(content)
    os.truncate(cut, 4500)
    swapped.write_bytes(whole.read_bytes())
    files = {file.entry: file for file in stored_files(root)}
    gone.unlink()
    problems = [verify(root, files[entry(number)]) for number in range(5)]
    kinds = [problem.kind if problem else None for problem in problems]
    assert kinds == ["checksum", "size", "key", None, None]


def test_removing_keeps_the_books_right(root: Path) -> None:
    tier = DiskTier(root, 100 * SIZE)
    assert remove(root, [entry(0), entry(3), entry(77)]) == 2 * SIZE
    with locked(root) as ledger:
        assert ledger.num_bytes == 3 * SIZE
    tier._next_scan = 0.0
    tier._tick()
    assert tier.contains([key_of(n) for n in range(5)]) == [False, True, True, False, True]
    tier.close()


def test_pruning_to_a_size_and_an_age(root: Path) -> None:
    assert prune(root, 100 * SIZE) == []
    assert prune(root, 100 * SIZE, ttl_s=200) == [entry(4)]
    assert prune(root, 2 * SIZE + 100) == [entry(3), entry(2)]
    assert [file.entry for file in stored_files(root)] == [entry(1), entry(0)]
    assert prune(root, 0) == [entry(1), entry(0)]
    with locked(root) as ledger:
        assert ledger.num_bytes == 0


def test_a_directory_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TierError, match="cannot be removed: Not a directory"):
        remove(tmp_path / "file", [entry(0)])
