"""DiskTier: bounds, restarts, and whatever may be wrong with a directory."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.kvstore.chunk_file import ChunkError, decode, encode
from quire.kvstore.chunks import ChunkKey, ChunkShape
from quire.kvstore.eviction import Entry
from quire.kvstore.tiers import disk, disk_files
from quire.kvstore.tiers.base import TierError
from quire.kvstore.tiers.disk import DiskTier
from quire.kvstore.tiers.disk_ledger import LEDGER_NAME, locked

SHAPE = ChunkShape(num_blocks=2, block_bytes=512)
SIZE = 4096 + SHAPE.num_bytes


def key_of(number: int, folder: int = 0) -> ChunkKey:
    return ChunkKey(bytes([folder]) * 32, number.to_bytes(32, "big"), 0)


def chunk(number: int, folder: int = 0) -> list[bytes]:
    data = number.to_bytes(2, "big") * (SHAPE.num_bytes // 2)
    return [bytes(part) for part in encode(key_of(number, folder), SHAPE, data)]


def path(root: Path, key: ChunkKey) -> Path:
    return root / key.folder / key.name[:2] / f"{key.name}.kv"


def files_in(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and path.name != LEDGER_NAME]


def bytes_in(root: Path) -> int:
    return sum(path.stat().st_size for path in files_in(root))


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[DiskTier]:
    tier = DiskTier(tmp_path, 20 * SIZE)
    yield tier
    tier.close()


def reopened(tmp_path: Path, max_bytes: int = 20 * SIZE, ttl_s: float | None = None) -> DiskTier:
    tier = DiskTier(tmp_path, max_bytes, ttl_s)
    tier.close()
    return tier


def test_a_file_is_where_it_is_said_to_be_and_for_its_owner_alone(
    tier: DiskTier, tmp_path: Path
) -> None:
    old = os.umask(0)
    try:
        tier.write(key_of(1), chunk(1))
    finally:
        os.umask(old)
    name = (1).to_bytes(32, "big").hex()
    file = tmp_path / ("00" * 16) / name[:2] / f"{name}-0.kv"
    assert file.read_bytes() == b"".join(chunk(1))
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert file.parent.parent.stat().st_mode & 0o777 == 0o700
    assert files_in(tmp_path) == [file]


def test_after_a_restart_everything_is_there(tier: DiskTier, tmp_path: Path) -> None:
    for number in range(5):
        tier.write(key_of(number, number % 2), chunk(number, number % 2))
    tier.close()
    again = reopened(tmp_path)
    assert again.contains([key_of(n, n % 2) for n in range(6)]) == [True] * 5 + [False]
    assert again.usage() == tier.usage()
    assert again.bytes_by_folder() == {"00" * 16: 3 * SIZE, "01" * 16: 2 * SIZE}


def test_the_least_recently_asked_for_goes_first_and_leaves_before_their_parents(
    tier: DiskTier, tmp_path: Path
) -> None:
    for number in range(20):
        tier.write(key_of(number), chunk(number))
    tier.contains([key_of(n) for n in range(5)])
    tier.write(key_of(20), chunk(20))
    assert tier.contains([key_of(n) for n in range(21)]).count(False) == 2
    assert not any(tier.contains([key_of(5), key_of(6)]))
    tier.contains([key_of(n) for n in range(7, 21)])
    tier.contains([key_of(n) for n in range(5)])
    tier.close()
    again = reopened(tmp_path, 3 * SIZE)
    assert again.contains([key_of(n) for n in range(5)]) == [True] * 2 + [False] * 3
    assert bytes_in(tmp_path) == 2 * SIZE


def test_the_quota_is_never_exceeded(tier: DiskTier, tmp_path: Path) -> None:
    for number in range(60):
        tier.write(key_of(number), chunk(number))
        assert bytes_in(tmp_path) == tier.usage().num_bytes <= 20 * SIZE
    assert bytes_in(tmp_path) >= 18 * SIZE


def test_a_folder_has_a_quota_of_its_own(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 20 * SIZE, folder_bytes=3 * SIZE)
    for number in range(6):
        tier.write(key_of(number, folder=1), chunk(number, folder=1))
        tier.write(key_of(number, folder=2), chunk(number, folder=2))
    assert tier.bytes_by_folder() == {"01" * 16: 3 * SIZE, "02" * 16: 3 * SIZE}
    assert tier.contains([key_of(n, 1) for n in range(6)]) == [False] * 3 + [True] * 3
    tier.close()


def test_a_chunk_that_can_never_fit_is_an_error_and_drops_nothing(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 3 * SIZE)
    tier.write(key_of(1), chunk(1))
    with pytest.raises(TierError, match="there is not enough room for 20000 bytes"):
        tier.write(key_of(2), [bytes(20000)])
    assert tier.contains([key_of(1)]) == [True]
    tier.close()


def test_pinned_chunks_stay(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 4 * SIZE)
    tier.write(key_of(0), chunk(0))
    tier.pin(key_of(0))
    for number in range(1, 20):
        tier.write(key_of(number), chunk(number))
    assert tier.contains([key_of(0)]) == [True]
    tier.unpin(key_of(0))
    for number in range(20, 30):
        tier.write(key_of(number), chunk(number))
    assert tier.contains([key_of(0)]) == [False]
    tier.close()


def test_what_is_cleared_is_not_pinned_any_more(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 4 * SIZE)
    tier.write(key_of(0), chunk(0))
    tier.pin(key_of(0))
    tier.clear(key_of(0).folder)
    for number in range(20):
        tier.write(key_of(number), chunk(number))
    assert tier.contains([key_of(0)]) == [False]
    tier.close()


def test_what_nobody_used_for_long_goes(tmp_path: Path) -> None:
    tier = reopened(tmp_path)
    for number in range(3):
        with locked(tmp_path):
            file = disk_files.UnfinishedFile(tmp_path, Entry(*names(number)), SIZE)
        file.write(chunk(number))
        file.publish()
    long_ago = time.time() - 1000
    os.utime(path(tmp_path, key_of(1)), (long_ago, long_ago))
    tier = DiskTier(tmp_path, 20 * SIZE, ttl_s=500)
    assert tier.contains([key_of(n) for n in range(3)]) == [True, False, True]
    assert len(files_in(tmp_path)) == 2
    old = time.time_ns() - int(600e9)
    with tier._index.books() as books:
        books.touch(Entry(*names(0)), old)
        books.touch(Entry(*names(2)), old)
    tier._index._used.clear()
    os.utime(path(tmp_path, key_of(2)), (long_ago, long_ago))
    tier._next_scan = 0
    tier._tick()
    assert tier.contains([key_of(0), key_of(2)]) == [True, False], "another process used the first"
    tier.close()


def names(number: int) -> tuple[str, str]:
    return key_of(number).folder, key_of(number).name


def test_what_another_process_wrote_and_removed_is_seen(tier: DiskTier, tmp_path: Path) -> None:
    other = DiskTier(tmp_path, 20 * SIZE)
    tier.write(key_of(1), chunk(1))
    other.write(key_of(2), chunk(2))
    assert bytes(other.read(key_of(1), SIZE) or b"") == b"".join(chunk(1))
    tier._next_scan = other._next_scan = 0.0
    tier._tick()
    assert tier.contains([key_of(1), key_of(2)]) == [True, True]
    other.delete(key_of(1))
    assert tier.read(key_of(1), SIZE) is None
    assert tier.contains([key_of(1), key_of(2)]) == [False, True]
    other.close()


def test_own_changes_need_no_scan(tier: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    scans: list[None] = []
    monkeypatch.setattr(disk_files, "scan", lambda _: scans.append(None) or iter(()))
    for number in range(10):
        tier.write(key_of(number), chunk(number))
    tier.delete(key_of(3))
    tier._next_scan = 0.0
    tier._tick()
    assert scans == []
    assert tier.usage().num_chunks == 9


def test_contains_makes_no_system_call(tier: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    tier.write(key_of(1), chunk(1))

    def never(*_args: object, **_named: object) -> None:
        pytest.fail("a system call")

    with monkeypatch.context() as patch:
        for name in ("open", "stat", "scandir", "utime", "lstat"):
            patch.setattr(os, name, never)
        found = tier.contains([key_of(n) for n in range(100)])
    assert found.count(True) == 1


def test_a_longer_file_is_not_read_but_removed(tier: DiskTier, tmp_path: Path) -> None:
    tier.write(key_of(1), chunk(1))
    assert tier.read(key_of(1), SIZE - 1) is None
    assert files_in(tmp_path) == []
    assert tier.usage().num_chunks == 0


@pytest.mark.parametrize("kind", ["directory", "link", "dangling", "fifo", "linked folder"])
def test_what_stands_where_a_file_should_be_is_no_chunk(tmp_path: Path, kind: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    tier = DiskTier(root, 20 * SIZE)
    tier.write(key_of(1), chunk(1))
    file = path(root, key_of(1))
    file.rename(outside / file.name)
    match kind:
        case "directory":
            file.mkdir()
        case "link":
            file.symlink_to(outside / file.name)
        case "dangling":
            file.symlink_to(outside / "nowhere")
        case "fifo":
            os.mkfifo(file)
        case "linked folder":
            file.parent.rmdir()
            file.parent.parent.rmdir()
            (outside / file.parent.name).mkdir()
            (outside / file.name).rename(outside / file.parent.name / file.name)
            file.parent.parent.symlink_to(outside)
    assert tier.read(key_of(1), SIZE) is None
    tier.delete(key_of(1))
    tier.close()
    again = reopened(root)
    assert again.contains([key_of(1)]) == [False]
    kept = list(outside.rglob("*.kv"))
    assert len(kept) == (kind != "none")
    tier = DiskTier(root, 20 * SIZE)
    if kind in ("directory", "linked folder"):
        with pytest.raises(TierError, match="cannot be written"):
            tier.write(key_of(1), chunk(1))
        assert tier.usage().num_chunks == 0
    else:
        tier.write(key_of(1), chunk(1))
        assert bytes(tier.read(key_of(1), SIZE) or b"") == b"".join(chunk(1))
    assert list(outside.rglob("*.kv")) == kept
    assert list(outside.rglob("*.tmp")) == []
    tier.close()


def test_another_users_directory_is_not_used(tier: DiskTier, tmp_path: Path) -> None:
    tier.write(key_of(1), chunk(1))
    folder = tmp_path / key_of(1).folder
    folder.chmod(0o777)
    assert tier.read(key_of(1), SIZE) is None
    with pytest.raises(TierError, match="others may write into it"):
        tier.write(key_of(2), chunk(2))


def test_other_files_are_left_alone(tier: DiskTier, tmp_path: Path) -> None:
    tier.write(key_of(1), chunk(1))
    prefix = path(tmp_path, key_of(1)).parent
    strangers = [
        tmp_path / "notes.txt",
        tmp_path / "photos" / "00" / "x.kv",
        prefix / "x.kv",
        prefix / f"{'ab' * 32}-0.kv",
        prefix.parent / "readme",
    ]
    for stranger in strangers:
        stranger.parent.mkdir(parents=True, exist_ok=True)
        stranger.write_bytes(b"x" * 100)
    again = DiskTier(tmp_path, SIZE)
    assert again.usage().num_chunks == 1
    again.write(key_of(2), chunk(2))
    assert all(stranger.exists() for stranger in strangers)
    again.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG])
def test_an_error_while_writing_leaves_nothing(
    tier: DiskTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    pwritev = os.pwritev

    def full(descriptor: int, views: list[memoryview], offset: int) -> int:
        if offset:
            raise OSError(code, os.strerror(code))
        return pwritev(descriptor, [views[0][:1000]], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        with pytest.raises(TierError, match=os.strerror(code)):
            tier.write(key_of(1), chunk(1))
    assert files_in(tmp_path) == []
    with locked(tmp_path) as ledger:
        assert ledger.num_bytes == 0
    tier.write(key_of(1), chunk(1))
    assert tier.contains([key_of(1)]) == [True]


def test_an_unfinished_file_goes_under_the_lock(
    tier: DiskTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a scan of another process's could miss the file, and its bytes be subtracted twice."""
    monkeypatch.setattr("quire.kvstore.tiers.disk_ledger._LOCK_TIMEOUT_S", 0.01)
    unlink, is_locked = os.unlink, []

    def checked(path: str, *, dir_fd: int | None = None) -> None:
        try:
            with locked(tmp_path):
                is_locked.append(False)
        except TimeoutError:
            is_locked.append(True)
        unlink(path, dir_fd=dir_fd)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwritev", full)
    monkeypatch.setattr(os, "unlink", checked)
    with pytest.raises(TierError, match="full"):
        tier.write(key_of(1), chunk(1))
    assert is_locked == [True]
    assert files_in(tmp_path) == []


def test_short_writes_and_reads_are_continued(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, read = os.pwrite, os.preadv

    def little(descriptor: int, views: list[memoryview], offset: int) -> int:
        return pwrite(descriptor, views[0][:700], offset)

    monkeypatch.setattr(os, "pwritev", little)
    tier.write(key_of(1), chunk(1))
    monkeypatch.setattr(
        os, "preadv", lambda descriptor, views, at: read(descriptor, [views[0][:900]], at)
    )
    assert tier.read(key_of(1), SIZE) == b"".join(chunk(1))


def test_an_error_while_reading_is_told(tier: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    tier.write(key_of(1), chunk(1))

    def broken(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", broken)
        with pytest.raises(TierError, match="cannot be read: Input/output error"):
            tier.read(key_of(1), SIZE)
    assert tier.read(key_of(1), SIZE) is not None


def test_the_directory_is_removed_while_running(tier: DiskTier, tmp_path: Path) -> None:
    import shutil

    tier.write(key_of(1), chunk(1))
    shutil.rmtree(tmp_path)
    assert tier.read(key_of(1), SIZE) is None
    tier.delete(key_of(1))
    shutil.rmtree(tmp_path)
    for number in range(40):
        tier.write(key_of(number), chunk(number))
        assert bytes_in(tmp_path) <= 20 * SIZE
    assert tier.usage().num_bytes == bytes_in(tmp_path)


@pytest.mark.parametrize("content", [b"", b"x", b"\xff" * 16, b"\0" * 16, b"y" * 40])
def test_a_damaged_ledger_is_made_again(tmp_path: Path, content: bytes) -> None:
    tier = DiskTier(tmp_path, 5 * SIZE)
    for number in range(5):
        tier.write(key_of(number), chunk(number))
    tier.close()
    (tmp_path / LEDGER_NAME).write_bytes(content)
    tier = DiskTier(tmp_path, 5 * SIZE)
    for number in range(5, 20):
        tier.write(key_of(number), chunk(number))
        assert bytes_in(tmp_path) <= 5 * SIZE
    tier.close()


def test_a_place_where_no_directory_can_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TierError, match="file/kv cannot be opened: Not a directory"):
        DiskTier(tmp_path / "file" / "kv", SIZE)


def test_unfinished_files_of_the_dead_are_removed_and_of_the_living_counted(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 20 * SIZE)
    tier.write(key_of(1), chunk(1))
    with locked(tmp_path) as ledger:
        living = disk_files.UnfinishedFile(tmp_path, Entry(*names(2)), SIZE)
        ledger.add(SIZE)
    dead = path(tmp_path, key_of(1)).with_name(f".{'00' * 32}-0.1.abc.tmp")
    dead.write_bytes(b"x" * 100)
    again = reopened(tmp_path)
    assert not dead.exists()
    with locked(tmp_path) as ledger:
        assert ledger.num_bytes == 2 * SIZE
    living.discard()
    tier.close()
    assert again.usage().num_chunks == 1


def test_a_writer_that_is_stopped_with_the_lock_stops_nobody(
    tier: DiskTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier.write(key_of(1), chunk(1))
    monkeypatch.setattr("quire.kvstore.tiers.disk_ledger._LOCK_TIMEOUT_S", 0.02)
    with locked(tmp_path):
        with pytest.raises(TierError, match="another process holds the lock"):
            tier.write(key_of(2), chunk(2))
        assert tier.contains([key_of(1)]) == [True]
        assert tier.read(key_of(1), SIZE) is not None


def test_a_child_that_has_the_open_ledger_does_not_keep_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.kvstore.tiers.disk_ledger._LOCK_TIMEOUT_S", 0.02)
    with locked(tmp_path) as ledger:
        copy = os.dup(ledger._descriptor)
    try:
        with locked(tmp_path):
            pass
    finally:
        os.close(copy)


def test_a_slow_directory_does_not_delay_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reopened(tmp_path)
    go_on = threading.Event()
    monkeypatch.setattr(disk, "_START_S", 0.01)
    monkeypatch.setattr(disk_files, "scan", lambda _: iter([go_on.wait(60)][:0]))
    tier = DiskTier(tmp_path, 20 * SIZE)
    assert tier.contains([key_of(1)]) == [False]
    go_on.set()
    assert tier._is_scanned.wait(60)
    tier.close()


def test_a_flipped_bit_and_a_cut_are_noticed(tier: DiskTier, tmp_path: Path) -> None:
    tier.write(key_of(1), chunk(1))
    file = path(tmp_path, key_of(1))
    content = bytearray(file.read_bytes())
    content[-5] ^= 16
    file.write_bytes(content)
    with pytest.raises(ChunkError):
        decode(tier.read(key_of(1), SIZE) or b"", key_of(1), SHAPE)
    os.truncate(file, 4097)
    with pytest.raises(ChunkError):
        decode(tier.read(key_of(1), SIZE) or b"", key_of(1), SHAPE)
