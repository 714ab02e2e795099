"""Result files: whole, added to, or an error by name that leaves the old one as it was."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from small_disk import small_disk

from quire.bench.metrics import save_json
from quire.errors import ConfigError


def test_results_replace_or_are_added(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.json"
    for append in (True, False, True):
        save_json(path, {"append": append}, append=append)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"append": False},
        {"append": True},
    ]


@pytest.mark.parametrize("append", [False, True])
def test_a_full_disk_leaves_the_old_results(tmp_path: Path, append: bool) -> None:
    path = tmp_path / "results.json"
    save_json(path, {"old": 1})
    with small_disk(1000), pytest.raises(ConfigError, match=f"^{path} cannot be written"):
        save_json(path, {"new": "x" * 5000}, append=append)
    assert json.loads(path.read_text()) == {"old": 1}
    assert os.listdir(tmp_path) == ["results.json"]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match="file cannot be made: "):
        save_json(tmp_path / "file" / "results.json", {})
    with pytest.raises(ConfigError, match="cannot be written: Is a directory"):
        save_json(tmp_path, {}, append=True)
