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
from hub_server import COMMIT, HubServer

from quire.config.model_lookup.library import models_of
from quire.config.model_lookup.resume import RemoteFile, Repository, remote_file
from quire.errors import CheckpointError, ConfigError

MIB = 1 << 20
BLOCK = MIB
"""Most bytes that a kill loses: those that are not written yet, and those in the connection."""
CONTENT = b"GGUF" + random.Random(1).randbytes(64 * MIB)


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
        hub.pause_s = 0.02
        lengths, lost = [0], []
        for _ in range(10):
            process = start(hub.url, "org/name:Q4_K_M")
            before = hub.num_sent
            goal = before + dice.randrange(6 * MIB)
            while hub.num_sent < goal and process.poll() is None:
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
            assert process.returncode == -signal.SIGKILL
            hub.wait()
            lengths.append(sum(path.stat().st_size for path in partials(cache)))
            lost.append(hub.num_sent - before - (lengths[-1] - lengths[-2]))
            assert len(partials(cache)) <= 1
        assert lengths == sorted(lengths)
        assert max(lost) <= BLOCK
        hub.pause_s = 0.0
        code, said = pull(hub.url, "org/name:Q4_K_M")
        assert code == 0, said
        assert "1 checksums compared" in said or "0 checksums compared" in said
        assert hub.num_sent == len(CONTENT) + sum(lost)
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
    old, new = (blob_of(cache, name, ".incomplete") for name in (b"an old state", b"a new branch"))
    for one in (old, new):
        one.write_bytes(b"a")
    os.utime(old, (0, 0))
    other = blob_of(cache, data + b"8", ".incomplete")
    other.write_bytes(data[:9])
    files = {"m-Q4_K_M.gguf": data, "m-Q8_0.gguf": data + b"8"}
    with HubServer("org/name", files, is_lfs=True) as hub:
        code, said = pull(hub.url, "org/name:Q4_K_M")
        assert code == 0, said
        assert "1 checksums compared" in said
        assert hub.range_starts == [0, 2 * MIB]
        assert hub.num_sent < 2 * MIB
    assert set(partials(cache)) == {other, new}  # of another quantisation, and another revision
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
    assert partials(cache) == [blob_of(cache, old, ".incomplete")]  # another revision may have it


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
        assert all(path.stat().st_size for path in partials(cache))
        hub.pause_s = 0.0
        assert pull(hub.url, "org/name")[0] == 0


def test_what_the_hub_says_of_a_file() -> None:
    def told(sha256: Any = "a" * 64, size: Any = 5, blob_id: Any = "b" * 40) -> RemoteFile:
        lfs = None if sha256 is None else {"sha256": sha256}
        return remote_file(
            SimpleNamespace(rfilename="a/x.gguf", size=size, lfs=lfs, blob_id=blob_id)
        )

    unknown = RemoteFile("a/x.gguf")
    assert told() == RemoteFile("a/x.gguf", 5, "a" * 64)
    assert told(sha256=None) == RemoteFile("a/x.gguf", 5, "b" * 40)
    for one in ("../../x", "a" * 63, "A" * 64, 7, ["a"]):
        assert told(sha256=one) == unknown
        assert told(sha256=None, blob_id=one) == unknown
    for size in (None, -1, True, "5", 10**15):
        assert told(size=size) == unknown


@pytest.mark.parametrize(
    "name", ["../x.json", "/x.json", "a/../x.json", "..", "", ".", "a//b", "x\0", "x\n.json", 7]
)
def test_a_name_that_leads_out_of_the_repository_is_refused(name: object) -> None:
    with pytest.raises(CheckpointError, match="the hub lists a file of the name"):
        remote_file(SimpleNamespace(rfilename=name, size=5, lfs=None, blob_id="b" * 40))


def fetched_with(
    answer: bytes, cache: Path, monkeypatch: pytest.MonkeyPatch, wanted: bytes = b"right"
) -> list[Path]:
    def http_get(_: str, file: Any, **__: Any) -> None:
        for first in range(0, len(answer), 3):
            file.write(answer[first : first + 3])

    monkeypatch.setattr("huggingface_hub.file_download.http_get", http_get)
    file = RemoteFile("m.gguf", len(wanted), hashlib.sha256(wanted).hexdigest())
    return Repository("org/name", COMMIT, cache, None).fetch([file], None)


def test_a_body_is_not_longer_than_announced(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="more than the 5 bytes that it announces"):
        fetched_with(b"right" * 1000, cache, monkeypatch)
    assert not partials(cache)
    with pytest.raises(CheckpointError, match="does not have the size, 5 bytes, that the hub"):
        fetched_with(b"righ", cache, monkeypatch)
    assert not partials(cache)


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
