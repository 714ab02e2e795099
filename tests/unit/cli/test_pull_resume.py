"""`quire pull` of large files: killed, damaged, changed and hostile ones, against a local hub."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hub_server import HubServer

from quire.config.model_lookup.library import models_of
from quire.config.model_lookup.resume import LargeFile, Repository, large_file
from quire.errors import CheckpointError, ConfigError

MIB = 1 << 20
BLOCK = 10 * MIB
"""huggingface_hub hands over pieces of this length; one that is not whole is lost in a kill."""
SOCKET = 8 * MIB
"""Most bytes that a connection holds."""
CONTENT = b"GGUF" + random.Random(1).randbytes(48 * MIB)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("hub", "settings"):
        monkeypatch.setenv("HF_HUB_CACHE" if name == "hub" else "XDG_CONFIG_HOME",
                           str(tmp_path / name))  # fmt: skip
    return tmp_path / "hub"


def start(url: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "quire", "pull", *words],
        env={**os.environ, "HF_ENDPOINT": url, "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def pull(url: str, *words: str) -> tuple[int, str]:
    process = start(url, *words)
    out, err = process.communicate(timeout=120)
    return process.returncode, out + err


def blob_of(cache: Path, data: bytes, suffix: str = "") -> Path:
    directory = cache / "models--org--name" / "blobs"
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{hashlib.sha256(data).hexdigest()}{suffix}"


def partials(cache: Path) -> list[Path]:
    return list(cache.rglob("*.incomplete"))


@pytest.mark.long
def test_a_killed_pull_goes_on_at_ten_random_points(cache: Path) -> None:
    dice = random.Random(7)
    with HubServer("org/name", {"m-Q4_K_M.gguf": CONTENT}, is_lfs=True) as hub:
        hub.pause_s = 0.005
        lengths = [0]
        for _ in range(10):
            process = start(hub.url, "org/name:Q4_K_M")
            goal = hub.num_sent + dice.randrange(BLOCK + SOCKET)
            while hub.num_sent < goal and process.poll() is None:
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
            lengths.append(sum(path.stat().st_size for path in partials(cache)))
            assert len(partials(cache)) <= 1
            if process.returncode == 0:
                break
        assert lengths[:-1] == sorted(lengths[:-1])  # the last one may have ended
        hub.pause_s = 0.0
        code, said = pull(hub.url, "org/name:Q4_K_M")
        assert code == 0, said
        assert "1 checksums compared" in said or "0 checksums compared" in said
        twice = hub.num_sent - len(CONTENT)
        assert twice <= len(lengths) * (BLOCK + SOCKET)
        assert hub.range_starts[1:] == sorted(hub.range_starts[1:])
        assert max(hub.range_starts) >= BLOCK
    assert blob_of(cache, CONTENT).read_bytes() == CONTENT
    assert not partials(cache)
    [model] = models_of(cache)
    assert model.is_complete


@pytest.mark.long
def test_a_partial_file_is_continued_and_others_are_removed(cache: Path) -> None:
    data = CONTENT[: 3 * MIB]
    blob_of(cache, data, ".incomplete").write_bytes(data[: 2 * MIB])
    blob_of(cache, data, ".0a1b2c3d.incomplete").write_bytes(b"of the library")
    blob_of(cache, b"an older state", ".incomplete").write_bytes(b"an")
    other = blob_of(cache, data + b"8", ".incomplete")
    other.write_bytes(data[:9])
    files = {"m-Q4_K_M.gguf": data, "m-Q8_0.gguf": data + b"8"}
    with HubServer("org/name", files, is_lfs=True) as hub:
        code, said = pull(hub.url, "org/name:Q4_K_M")
        assert code == 0, said
        assert "1 checksums compared" in said
        assert hub.range_starts == [0, 2 * MIB]
        assert hub.num_sent < 2 * MIB
    assert partials(cache) == [other]  # an interrupted pull of another quantisation stays
    assert blob_of(cache, data).read_bytes() == data


@pytest.mark.long
@pytest.mark.parametrize("had", [b"x" * 1000, b"x" * (3 * MIB), b"x" * (4 * MIB)])
def test_a_damaged_partial_file_is_fetched_anew(cache: Path, had: bytes) -> None:
    data = CONTENT[: 3 * MIB]
    blob_of(cache, data, ".incomplete").write_bytes(had)
    with HubServer("org/name", {"m-Q4_K_M.gguf": data}, is_lfs=True) as hub:
        code, said = pull(hub.url, "org/name")
    assert code == 0, said
    assert blob_of(cache, data).read_bytes() == data


@pytest.mark.long
def test_a_file_that_changes_between_two_tries(cache: Path) -> None:
    old, new = CONTENT[: 2 * MIB], CONTENT[MIB : 3 * MIB]
    blob_of(cache, old, ".incomplete").write_bytes(old[:MIB])
    with HubServer("org/name", {"m-Q4_K_M.gguf": new}, is_lfs=True) as hub:
        assert pull(hub.url, "org/name")[0] == 0
        assert hub.range_starts == [0]
    assert blob_of(cache, new).read_bytes() == new
    assert not partials(cache)


@pytest.mark.long
def test_two_pulls_at_once_fetch_a_file_once(cache: Path) -> None:
    data = CONTENT[: 4 * MIB]
    with HubServer("org/name", {"m-Q4_K_M.gguf": data}, is_lfs=True) as hub:
        hub.pause_s = 0.1
        both = [start(hub.url, "org/name") for _ in range(2)]
        said = [one.communicate(timeout=120) for one in both]
        assert [one.returncode for one in both] == [0, 0], said
        assert hub.num_sent < len(data) + MIB
    assert blob_of(cache, data).read_bytes() == data


@pytest.mark.long
def test_ctrl_c_keeps_what_was_fetched(cache: Path) -> None:
    with HubServer("org/name", {"m-Q4_K_M.gguf": CONTENT}, is_lfs=True) as hub:
        hub.pause_s = 0.01
        process = start(hub.url, "org/name")
        while not any(path.stat().st_size for path in partials(cache)):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode != 0
        assert "Traceback" not in said
        assert [path.stat().st_size % BLOCK for path in partials(cache)] == [0]
        hub.pause_s = 0.0
        assert pull(hub.url, "org/name")[0] == 0


def test_what_the_hub_says_of_a_file() -> None:
    def told(sha256: Any = "a" * 64, size: Any = 5) -> LargeFile | None:
        lfs = None if sha256 is None else {"sha256": sha256}
        return large_file(SimpleNamespace(rfilename="../x.gguf", size=size, lfs=lfs))

    assert told() == LargeFile("../x.gguf", 5, "a" * 64)
    for one in (None, "../../x", "a" * 63, "A" * 64, 7, ["a"]):
        assert told(sha256=one) is None
    for size in (None, 0, -1, True, "5", 10**15):
        assert told(size=size) is None


def fetched_with(
    answer: bytes, cache: Path, monkeypatch: pytest.MonkeyPatch, wanted: bytes = b"right"
) -> list[Path]:
    def http_get(_: str, file: Any, **__: Any) -> None:
        for first in range(0, len(answer), 3):
            file.write(answer[first : first + 3])

    monkeypatch.setattr("huggingface_hub.file_download.http_get", http_get)
    file = LargeFile("m.gguf", len(wanted), hashlib.sha256(wanted).hexdigest())
    return Repository("org/name", None, cache, None).fetch([file], None)


def test_a_body_is_not_longer_than_announced(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="more than the 5 bytes that it announces"):
        fetched_with(b"right" * 1000, cache, monkeypatch)
    assert max(path.stat().st_size for path in partials(cache)) <= 5


def test_another_content_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="does not have the checksum"):
        fetched_with(b"wrong", cache, monkeypatch)
    assert not partials(cache)
    assert fetched_with(b"right", cache, monkeypatch) == [blob_of(cache, b"right")]
    assert fetched_with(b"", cache, monkeypatch) == []  # it is here


def test_a_full_disk_is_seen_before(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = bytes(5 * MIB)
    blob_of(cache, wanted, ".incomplete").write_bytes(wanted[:MIB])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3 * MIB))
    with pytest.raises(ConfigError, match=r"needs 4\.0 MiB more in .*, where 3\.0 MiB are free"):
        fetched_with(wanted, cache, monkeypatch, wanted)
