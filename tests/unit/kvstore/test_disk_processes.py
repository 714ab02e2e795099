"""Real processes that share a directory of chunks, and that are killed while they write."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quire.kvstore.chunk_file import decode, read_header
from quire.kvstore.eviction import Entry
from quire.kvstore.tiers import disk_files
from quire.kvstore.tiers.disk import DiskTier
from quire.kvstore.tiers.disk_ledger import LEDGER_NAME, locked

WRITER = """
import itertools, random, sys
from pathlib import Path
from quire.kvstore.chunk_file import encode
from quire.kvstore.chunks import ChunkKey, ChunkShape
from quire.kvstore.tiers.disk import DiskTier

root, max_bytes, seed, count = Path(sys.argv[1]), *map(int, sys.argv[2:])
rng, shape = random.Random(seed), ChunkShape(2, 30_000)
tier = DiskTier(root, max_bytes)
print("ready", flush=True)
for _ in range(count):
    key = ChunkKey(bytes([rng.randrange(3)]) * 32, rng.randrange(60).to_bytes(32, "big"), 0)
    if rng.random() < 0.1:
        tier.delete(key)
    tier.contains([key])
    tier.write(key, encode(key, shape, rng.randbytes(shape.num_bytes)))
tier.close()
"""
FILE_BYTES = 4096 + 60_000
MAX_BYTES = 20 * FILE_BYTES


def start_writer(root: Path, seed: int, count: int) -> subprocess.Popen[str]:
    arguments = [str(root), str(MAX_BYTES), str(seed), str(count)]
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def bytes_in(root: Path) -> int:
    files = (path for path in root.rglob("*") if path.is_file() and path.name != LEDGER_NAME)
    return sum(path.stat().st_size for path in files)


def assert_all_whole(root: Path) -> int:
    """Each file is the chunk that its name says. Returns how many there are."""
    count = 0
    for file in disk_files.scan(root):
        chunk = disk_files.read(root, file.entry, FILE_BYTES)
        assert chunk is not None
        header = read_header(chunk)
        assert Entry(header.key.folder, header.key.name) == file.entry
        decode(chunk, header.key, header.shape)
        count += 1
    return count


def test_two_writers_never_exceed_the_quota(tmp_path: Path) -> None:
    writers = [start_writer(tmp_path, seed, 250) for seed in range(2)]
    samples = []
    while any(writer.poll() is None for writer in writers):
        with locked(tmp_path) as ledger:
            samples.append(bytes_in(tmp_path))
            assert samples[-1] <= ledger.num_bytes <= MAX_BYTES
        time.sleep(0.005)
    assert [writer.wait() for writer in writers] == [0, 0]
    samples.append(bytes_in(tmp_path))
    assert max(samples) > MAX_BYTES * 3 // 4
    with locked(tmp_path) as ledger:
        assert ledger.num_bytes == bytes_in(tmp_path)
    assert assert_all_whole(tmp_path) > 0
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.close()


@pytest.mark.parametrize("times", [5, pytest.param(100, marks=pytest.mark.long)])
def test_killed_while_writing(tmp_path: Path, times: int) -> None:
    """No broken chunk has a name, and the books are right again after the next start."""
    rng = random.Random(times)
    for seed in range(times):
        with start_writer(tmp_path, seed, 1_000_000) as writer:
            time.sleep(rng.uniform(0, 0.1))
            os.kill(writer.pid, signal.SIGKILL)
        assert_all_whole(tmp_path)
        tier = DiskTier(tmp_path, MAX_BYTES)
        assert tier.usage().num_bytes == bytes_in(tmp_path) <= MAX_BYTES
        with locked(tmp_path) as ledger:
            assert ledger.num_bytes == bytes_in(tmp_path)
        tier.close()


def test_killed_in_the_middle_of_a_chunk(tmp_path: Path) -> None:
    code = WRITER.replace("tier = DiskTier", "import os\nos.pwritev = stop\ntier = DiskTier")
    stop = (
        "def stop(descriptor, views, offset):\n"
        "    import os, signal\n"
        "    os.pwrite(descriptor, bytes(views[0])[:2000], offset)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    arguments = [str(tmp_path), str(MAX_BYTES), "0", "10"]
    done = subprocess.run(
        [sys.executable, "-c", stop + code, *arguments], capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert bytes_in(tmp_path) == FILE_BYTES, "the unfinished file, with the size it would have"
    assert list(disk_files.scan(tmp_path)) == []
    DiskTier(tmp_path, MAX_BYTES).close()
    assert bytes_in(tmp_path) == 0
