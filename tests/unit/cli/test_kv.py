"""`quire kv`: what is in a directory of chunks, and what becomes of it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire.bench.kv_tiers import TierTimes
from quire.cli.app import main
from quire.kvstore.chunk_file import encode, num_file_bytes
from quire.kvstore.chunks import ChunkKey, ChunkShape
from quire.kvstore.tiers.disk import DiskTier

SHAPE = ChunkShape(4, 1000)
SIZE = num_file_bytes(SHAPE)
MODELS = (bytes(32), bytes([255]) * 32)
Run = Callable[..., Any]


def key_of(number: int) -> ChunkKey:
    digest = hashlib.sha256(str(number).encode()).digest()
    return ChunkKey(MODELS[number % 2], digest, 0)


def file_of(store: Path, key: ChunkKey) -> Path:
    return store / key.folder / key.name[:2] / f"{key.name}.kv"


def fill(path: Path, count: int = 6) -> None:
    """Number 0 was used last, each of the others a day before the one in front of it."""
    tier = DiskTier(path, 1 << 30)
    for number in range(count):
        data = bytes([number]) * SHAPE.num_bytes
        tier.write(key_of(number), encode(key_of(number), SHAPE, data))
    tier.close()
    for number in range(count):
        when = time.time() - number * 86_400
        os.utime(file_of(path, key_of(number)), (when, when))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    fill(tmp_path / "kv")
    return tmp_path / "kv"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """What a command prints as JSON, or its exit code and message."""

    def call(*words: object, code: int = 0) -> Any:
        capsys.readouterr()
        assert main(["kv", *map(str, words)]) == code
        out, err = capsys.readouterr()
        return json.loads(out) if "--json" in words and not err else out + err

    return call


def left(store: Path) -> set[int]:
    return {number for number in range(10) if file_of(store, key_of(number)).exists()}


def test_what_is_there(store: Path, run: Run) -> None:
    found = run("ls", "--path", store, "--json")
    assert [folder["name"] for folder in found] == ["00" * 16, "ff" * 16]
    assert [(folder["num_chunks"], folder["num_bytes"]) for folder in found] == [(3, 3 * SIZE)] * 2
    assert found[1]["last_used_ns"] - found[1]["first_used_ns"] == pytest.approx(4 * 86_400e9)
    text = run("ls", "--path", store)
    assert "00" * 16 in text
    assert "0 min" in text
    assert "4 days" in text
    assert run("du", "--path", store, "--json") == {
        "path": str(store), "num_folders": 2, "num_chunks": 6, "num_bytes": 6 * SIZE,
    }  # fmt: skip
    assert "47.4 KiB in 6 chunks of 2 models" in run("du", "--path", store)


def test_nothing_is_made_by_looking(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert run("ls", "--json") == []
    assert run("du", "--json")["num_bytes"] == 0
    assert run("verify", "--json")["num_chunks"] == 0
    assert run("prune", "--all", "--json")["num_chunks"] == 0
    assert list(tmp_path.iterdir()) == []
    assert "must be an existing directory" in run("ls", "--path", tmp_path / "none", code=1)


def damage(store: Path) -> None:
    flipped = file_of(store, key_of(1))
    data = bytearray(flipped.read_bytes())
    data[-1] ^= 1
    flipped.write_bytes(data)
    file_of(store, key_of(2)).write_bytes(b"short")
    file_of(store, key_of(4)).write_bytes(file_of(store, key_of(0)).read_bytes())


def test_damaged_files_are_found_and_removed(store: Path, run: Run) -> None:
    assert run("verify", "--path", store, "--json")["damaged"] == []
    damage(store)
    text = run("verify", "--path", store, code=1)
    assert "6 chunks" in text
    assert "3 damaged" in text
    found = run("verify", "--path", store, "--json", "--delete", code=1)["damaged"]
    kinds = {one["name"]: one["kind"] for one in found}
    assert kinds == {key_of(1).name: "checksum", key_of(2).name: "size", key_of(4).name: "key"}
    assert left(store) == {0, 3, 5}
    assert "0 damaged" in run("verify", "--path", store)


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["--all"], set()),
        (["--all", "--dry-run"], {0, 1, 2, 3, 4, 5}),
        (["--folder", "ff"], {0, 2, 4}),
        (["--older-than", "60h"], {0, 1, 2}),
        (["--older-than", "2.5d", "--folder", "00"], {0, 1, 2, 3, 5}),
        (["--max-size", f"{2 * SIZE}"], {0, 1}),
        (["--max-size", f"{3 * SIZE - 1}"], {0, 1}),
        (["--max-size", f"{SIZE}", "--folder", "ff"], {0, 1, 2, 4}),
        (["--max-size", "1GiB"], {0, 1, 2, 3, 4, 5}),
    ],
    ids=str,
)
def test_what_is_pruned(store: Path, run: Run, words: list[str], kept: set[int]) -> None:
    found = run("prune", "--path", store, "--json", *words)
    assert left(store) == kept
    if "--dry-run" not in words:
        assert (found["num_chunks"], found["num_bytes"]) == (6 - len(kept), (6 - len(kept)) * SIZE)
        assert found["num_left"] == len(kept)
    tier = DiskTier(store, 1 << 30)
    assert tier.usage().num_bytes == len(kept) * SIZE
    tier.close()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "select chunks"),
        (["--all", "--folder", "a"], "--all removes everything"),
        (["--folder", "../x"], "must be a prefix of 32 hex digits"),
    ],
)
def test_prune_must_be_told_what(store: Path, run: Run, words: list[str], message: str) -> None:
    assert message in run("prune", "--path", store, *words, code=1)
    assert left(store) == {0, 1, 2, 3, 4, 5}


def test_a_copy_of_the_directory_is_a_store(store: Path, tmp_path: Path) -> None:
    other = shutil.copytree(store, tmp_path / "other")
    assert left(other) == {0, 1, 2, 3, 4, 5}
    tier = DiskTier(other, 1 << 30)
    assert all(tier.contains([key_of(number) for number in range(6)]))
    tier.close()


@pytest.fixture
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("QUIRE_KV_STORE", "on")
    monkeypatch.setenv("QUIRE_LOG_LEVEL", "WARNING")


@pytest.mark.usefixtures("_own_cache")
def test_what_a_tier_costs(model_dir: Path, tmp_path: Path, run: Run) -> None:
    found = run("bench", model_dir, "--kv-store-memory", "1MiB", "--json")
    assert [tier["tier"] for tier in found["tiers"]] == ["memory", "disk"]
    for tier in found["tiers"]:
        assert min(tier["write_s"], tier["read_s"], tier["ask_s"]) > 0
    assert found["seconds_per_token"] > 0
    left_over = {path.name for path in (tmp_path / "cache" / "quire").iterdir()}
    assert left_over <= {"tokenizers"}
    text = run("bench", model_dir, "--no-kv-store", code=1)
    assert "this engine has no KV store" in text


def test_when_loading_wins() -> None:
    times = TierTimes("disk", write_s=1.0, read_s=0.026, ask_s=0.01)
    assert times.break_even(256, 1e-3) == round(0.01 / (1e-3 - 0.016 / 256))
    assert times.break_even(256, 0.016 / 256) is None
    assert TierTimes("memory", 1.0, 1e-9, 0.0).break_even(256, 1e-3) == 1


@pytest.mark.usefixtures("_own_cache")
def test_prompts_are_computed(model_dir: Path, tmp_path: Path, run: Run) -> None:
    prompts = tmp_path / "prompts"
    lines = [
        "a text", "", json.dumps({"prompt": [1, 2, 3], "cache_salt": "s"}),
        json.dumps({"messages": [{"role": "user", "content": "hi"}]}),
    ]  # fmt: skip
    prompts.write_text("\n".join(lines))
    assert "3 prompts, " in run("warm", prompts, model_dir)
    assert "has no KV store" in run("warm", prompts, model_dir, "--no-kv-store", code=1)
    assert "give a file of prompts" in run("warm", code=1)
    for bad in ("{", '{"prompt": 3}', '{"messages": [], "prompt": "a"}', '{"a": 1}'):
        prompts.write_text(f"text\n{bad}")
        assert "line 2: " in run("warm", prompts, model_dir, code=1)
