"""A weights file that changes while it is mapped: an error by name, and never the process's end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from weight_files import numbers, write_safetensors

from quire.backends.cpu.library import guard_mappings
from quire.errors import BackendError, CheckpointError
from quire.weights import open_checkpoint
from quire.weights.mapped_file import MappedFile

SIZE = 10 * 4096 + 5


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file.bin"
    path.write_bytes(np.random.default_rng(0).bytes(SIZE))
    os.utime(path, (1e9, 1e9))
    return path


@pytest.fixture
def guard() -> None:
    try:
        guard_mappings()
    except BackendError as error:
        pytest.skip(f"the native library is not built here: {error}")


def test_bytes_and_slices_are_the_file(path: Path) -> None:
    file = MappedFile(path)
    assert file.size == SIZE
    assert file.bytes(4000, 200) == path.read_bytes()[4000:4200] == file.slice(4000, 200).tobytes()
    file.check()
    for offset, length in ((-1, 2), (0, SIZE + 1), (SIZE, 1), (0, -1)):
        with pytest.raises(CheckpointError, match="outside the file"):
            file.slice(offset, length)


def rewrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"x")


def grow(path: Path) -> None:
    os.truncate(path, 2 * SIZE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: os.truncate(path, 0), rf"cut short while in use, from {SIZE} bytes to 0"),
        (lambda path: os.truncate(path, SIZE - 1), f"from {SIZE} bytes to {SIZE - 1}"),
        (rewrite, "written to while in use"),
        (grow, "written to while in use"),
    ],
)
def test_a_change_is_noticed(path: Path, change: Callable[[Path], None], message: str) -> None:
    file = MappedFile(path)
    change(path)
    with pytest.raises(CheckpointError, match=rf"{path}: .*{message}"):
        file.check()


def test_a_time_that_is_rounded_is_no_change(path: Path) -> None:
    file = MappedFile(path)
    os.utime(path, (1e9 - 2, 1e9 - 2))
    file.check()


def test_a_file_that_takes_the_name_harms_nobody(path: Path) -> None:
    original = path.read_bytes()
    file = MappedFile(path)
    other = path.with_name("other")
    other.write_bytes(b"short")
    other.replace(path)
    assert file.slice(0, SIZE).tobytes() == original
    file.check()


def test_a_header_is_read_from_the_file_itself(path: Path) -> None:
    file = MappedFile(path)
    os.truncate(path, 50)
    with pytest.raises(CheckpointError, match="cut short while it was read"):
        file.bytes(0, 100)


@pytest.mark.usefixtures("guard")
def test_missing_pages_read_as_zeros_and_are_told(path: Path) -> None:
    original = path.read_bytes()
    file = MappedFile(path)
    view = file.slice(4096, SIZE - 4096)
    file.check()
    os.truncate(path, 3 * 4096)
    copied = view.tobytes()
    assert copied[: 2 * 4096] == original[4096 : 3 * 4096]
    assert not any(copied[2 * 4096 :])
    with pytest.raises(CheckpointError, match="cut short while in use"):
        file.check()
    path.write_bytes(original)
    with pytest.raises(CheckpointError, match=r"byte 12288 could not be read"):
        file.check()
    MappedFile(path).check()


@pytest.mark.usefixtures("guard")
def test_views_are_guarded_for_as_long_as_they_live(path: Path) -> None:
    view = MappedFile(path).slice(0, SIZE)[8192:].reshape(-1)
    os.truncate(path, 0)
    assert not view.any()


@pytest.mark.usefixtures("guard")
def test_guards_end_with_their_mappings(path: Path) -> None:
    for _ in range(10_000):
        MappedFile(path)


@pytest.mark.usefixtures("guard")
def test_a_checkpoint_that_is_cut_short_while_it_is_read(tmp_path: Path) -> None:
    arrays = {f"w{i}": numbers(64, 64, seed=i) for i in range(4)}
    path = write_safetensors(tmp_path / "model.safetensors", arrays)
    store = open_checkpoint(tmp_path)
    store.get("w0").to_float32()
    store.check()
    os.truncate(path, 8192)
    for name in store.names():
        store.get(name).to_float32().sum()
    with pytest.raises(CheckpointError, match=rf"{path}: .*cut short"):
        store.check()


_ANOTHER_MAPPING = """
import faulthandler, mmap, os, sys
from quire.backends.cpu.library import guard_mappings
from quire.weights.mapped_file import MappedFile
from pathlib import Path
if sys.argv[2] == "dump":
    faulthandler.enable()
guard_mappings()
path = Path(sys.argv[1])
watched = MappedFile(path)
with path.open("rb") as file:
    strange = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
os.truncate(path, 0)
watched.slice(0, 10).tobytes()
print("alive", flush=True)
if sys.argv[2] == "sent":
    os.kill(os.getpid(), 7)
strange[0]
"""


@pytest.mark.usefixtures("guard")
@pytest.mark.parametrize("how", ["plain", "dump", "sent"])
def test_any_other_bus_error_ends_the_process_as_before(path: Path, how: str) -> None:
    command = [sys.executable, "-c", _ANOTHER_MAPPING, str(path), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "alive\n"
    assert done.returncode == -signal.SIGBUS
    assert ("Fatal Python error: Bus error" in done.stderr) == (how == "dump")
