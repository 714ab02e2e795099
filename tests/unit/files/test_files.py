"""Files appear whole or not at all; a full disk is an error by name."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from small_disk import small_disk

from quire.errors import CheckpointError, ConfigError
from quire.files import replacing, write_text


def test_a_new_file_and_one_that_replaces_another(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for text in ("first", "second, longer", ""):
        write_text(path, text)
        assert path.read_text() == text
        assert os.listdir(tmp_path) == ["file"]


def test_until_it_is_complete_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old")
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), CheckpointError("the source is damaged")])
def test_an_interrupted_file_never_gets_its_name(tmp_path: Path, error: BaseException) -> None:
    def write_half() -> None:
        with replacing(tmp_path / "file") as file:
            file.write(b"half")
            raise error

    with pytest.raises(type(error)):
        write_half()
    assert os.listdir(tmp_path) == []


def fill(path: Path, *, keeps_unfinished: bool = False) -> None:
    with small_disk(10_000), replacing(path, keeps_unfinished=keeps_unfinished) as file:
        for _ in range(100):
            file.write(bytes(1000))


def test_a_full_disk(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "old")
    with pytest.raises(ConfigError, match=rf"^{tmp_path}/file cannot be written: File too large$"):
        fill(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_full_disk_may_keep_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"the incomplete file is {tmp_path}/file\.part$"):
        fill(tmp_path / "file", keeps_unfinished=True)
    assert os.listdir(tmp_path) == ["file.part"]
    assert (tmp_path / "file.part").stat().st_size == 10_000


@pytest.mark.parametrize("keeps_unfinished", [False, True])
def test_places_that_cannot_be_written(tmp_path: Path, keeps_unfinished: bool) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    for place in (
        tmp_path / "missing" / "file", tmp_path / "directory", tmp_path / "loop",
        tmp_path / ("x" * 300), Path("/proc/nothing"), Path("/dev/full"),
    ):  # fmt: skip
        with (
            pytest.raises(ConfigError, match="cannot be written: ") as caught,
            replacing(place, keeps_unfinished=keeps_unfinished) as file,
        ):
            file.write(b"text")
        assert "what there is" not in str(caught.value)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    write_text(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "text"


def test_a_pipe_is_written_to_as_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    write_text(tmp_path / "pipe", "text")
    reader.join(60)
    assert read == ["text"]
    assert (tmp_path / "pipe").is_fifo()
