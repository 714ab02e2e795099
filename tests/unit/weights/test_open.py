"""`open_checkpoint`: which files are chosen, and which lies about them are caught."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from weight_files import numbers, read_all, write_safetensors

from quire.errors import CheckpointError
from quire.weights import open_checkpoint, weight_files

torch = pytest.importorskip("torch")

ONE = numbers(2, 3, seed=1)
TWO = numbers(4, seed=2)


def write_index(directory: Path, weight_map: Any, name: str = "model.safetensors") -> None:
    (directory / f"{name}.index.json").write_text(json.dumps({"weight_map": weight_map}))


def sharded(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    write_safetensors(directory / "model-00001-of-00002.safetensors", {"one": ONE})
    write_safetensors(directory / "model-00002-of-00002.safetensors", {"two": TWO})
    return directory


def assert_both(directory: Path) -> None:
    store = open_checkpoint(directory)
    store.prefetch()
    found = read_all(store)
    assert (found["one"] == ONE).all()
    assert (found["two"] == TWO).all()
    store.release("one")
    with pytest.raises(CheckpointError, match="no tensor 'three'"):
        store.get("three")
    store.close()


def test_one_file(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"one": ONE, "two": TWO})
    assert_both(tmp_path)


def test_a_file_of_another_name(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "weights.safetensors", {"one": ONE, "two": TWO})
    write_safetensors(tmp_path / "consolidated.safetensors", {"one": TWO})
    write_safetensors(tmp_path / "adapter_model.safetensors", {"lora": TWO})
    assert_both(tmp_path)


def test_shards_with_and_without_an_index(tmp_path: Path) -> None:
    sharded(tmp_path)
    assert_both(tmp_path)
    write_index(
        tmp_path,
        {
            "one": "model-00001-of-00002.safetensors",
            "two": "model-00002-of-00002.safetensors",
        },
    )
    assert_both(tmp_path)


def test_safetensors_before_bin(tmp_path: Path) -> None:
    torch.save({"one": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    torch.save({"junk": torch.zeros(1)}, tmp_path / "training_args.bin")
    assert list(open_checkpoint(tmp_path).names()) == ["one"]
    write_safetensors(tmp_path / "model.safetensors", {"one": ONE, "two": TWO})
    assert_both(tmp_path)


def test_sharded_bin(tmp_path: Path) -> None:
    torch.save({"one": torch.from_numpy(ONE)}, tmp_path / "pytorch_model-00001-of-00002.bin")
    torch.save({"two": torch.from_numpy(TWO)}, tmp_path / "pytorch_model-00002-of-00002.bin")
    assert_both(tmp_path)
    owners = {
        "one": "pytorch_model-00001-of-00002.bin",
        "two": "pytorch_model-00002-of-00002.bin",
    }
    write_index(tmp_path, owners, "pytorch_model.bin")
    assert_both(tmp_path)


def test_no_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no weights"):
        open_checkpoint(tmp_path)


def test_a_missing_shard_is_noticed_without_an_index(tmp_path: Path) -> None:
    (sharded(tmp_path) / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match="must have 2 files, but only 1 are there"):
        open_checkpoint(tmp_path)


def test_the_same_name_in_two_files(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"one": ONE})
    write_safetensors(tmp_path / "b.safetensors", {"one": ONE})
    with pytest.raises(CheckpointError, match=r"'one' is in both a\.safetensors and b\."):
        open_checkpoint(tmp_path)


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"

LYING: dict[str, tuple[Any, str]] = {
    "missing file": (
        {"one": FIRST, "two": "gone.safetensors"},
        "names 'gone.safetensors', but the file is missing",
    ),
    "a long name": ({"one": FIRST, "two": "x" * 300}, "must be a plain file name"),
    "wrong shard": ({"one": SECOND, "two": SECOND}, "assigns tensor 'one' to .*does not hold"),
    "unknown tensor": ({"one": FIRST, "three": FIRST}, "assigns tensor 'three' to"),
    "parent": ({"one": "../secret.safetensors"}, "must be a plain file name"),
    "absolute": ({"one": "/etc/passwd"}, "must be a plain file name"),
    "folder": ({"one": "sub/a.safetensors"}, "must be a plain file name"),
    "backslash": ({"one": "..\\a.safetensors"}, "must be a plain file name"),
    "nul": ({"one": "a\0b"}, "must be a plain file name"),
    "empty": ({"one": ""}, "must be a plain file name"),
    "dots": ({"one": ".."}, "must be a plain file name"),
    "number": ({"one": 5}, "must be a plain file name"),
    "no tensors": ({}, "weight_map must be"),
    "a list": ([FIRST], "weight_map must be"),
}


@pytest.mark.parametrize("lie", sorted(LYING))
def test_a_lying_index_is_refused(tmp_path: Path, lie: str) -> None:
    weight_map, message = LYING[lie]
    write_safetensors(tmp_path / "secret.safetensors", {"one": ONE})
    write_index(sharded(tmp_path / "model"), weight_map)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path / "model")


@pytest.mark.parametrize("text", ["", "[", "[]", '{"weight_map": {"a": "b", "a": "c"}}', "\xff"])
def test_an_index_that_is_no_json(tmp_path: Path, text: str) -> None:
    (sharded(tmp_path) / "model.safetensors.index.json").write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"index\.json"):
        open_checkpoint(tmp_path)


def test_a_stale_index_gives_way_to_a_whole_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Shards were joined, and their index is still there. Without the whole file it is an error."""
    write_index(tmp_path, {"one": "model-00001-of-00002.safetensors"})
    whole = tmp_path / "model.safetensors"
    write_safetensors(whole, {"one": numbers(2, 2)})
    with caplog.at_level(logging.WARNING, logger="quire"):
        assert set(open_checkpoint(tmp_path).names()) == {"one"}
    assert "model-00001-of-00002.safetensors, which is missing" in caplog.text
    assert weight_files(tmp_path) == [whole]
    whole.unlink()
    with pytest.raises(CheckpointError, match="the download may be incomplete"):
        open_checkpoint(tmp_path)


def test_tensors_that_the_index_leaves_out_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_index(sharded(tmp_path), {"one": FIRST})
    write_safetensors(tmp_path / FIRST, {"one": ONE, "more": TWO})
    logger = logging.getLogger("quire.weights.sharded")
    logger.addHandler(caplog.handler)
    try:
        assert list(open_checkpoint(tmp_path).names()) == ["one"]
    finally:
        logger.removeHandler(caplog.handler)
    assert "1 tensors that the index does not name" in caplog.text


def test_links_as_the_hub_makes_them(tmp_path: Path) -> None:
    repo = tmp_path / "models--org--name"
    snapshot, blobs = repo / "snapshots" / "abc", repo / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    write_safetensors(blobs / "0123", {"one": ONE, "two": TWO})
    os.symlink("../../blobs/0123", snapshot / "model.safetensors")
    assert_both(snapshot)
    elsewhere = tmp_path / "shared-store"
    elsewhere.mkdir()
    (blobs / "0123").rename(elsewhere / "0123")
    os.symlink(elsewhere / "0123", blobs / "0123")
    assert_both(snapshot)


def test_other_links_out_of_the_checkpoint_are_refused(tmp_path: Path) -> None:
    outside = write_safetensors(tmp_path / "outside", {"one": ONE, "two": TWO})
    model = tmp_path / "model"
    model.mkdir()
    link = model / "model.safetensors"
    os.symlink(outside, link)
    with pytest.raises(CheckpointError, match="outside of the checkpoint"):
        open_checkpoint(model)
    link.unlink()
    write_safetensors(model / "inside", {"one": ONE, "two": TWO})
    os.symlink("inside", link)
    assert_both(model)
    os.symlink(model, tmp_path / "alias")
    assert_both(tmp_path / "alias")
    link.unlink()
    os.symlink("gone", link)
    with pytest.raises(CheckpointError, match="links to gone, where there is nothing"):
        open_checkpoint(model)
