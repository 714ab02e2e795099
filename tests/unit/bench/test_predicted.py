"""The benchmark of expectations, on a tiny model: both sides of every cell, round by round."""

from __future__ import annotations

import json
from pathlib import Path

import predicted
import pytest
from tiny_checkpoint import write_tiny_checkpoint

from quire.config.engine_args import EngineArgs


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_checkpoint(tmp_path / "model", max_position_embeddings=1024)


def test_both_sides_of_every_cell(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "r.json"
    words = ["--model", str(model), "--formats", "int8", "--rounds", "2", "--json", str(file)]
    monkeypatch.setattr("sys.argv", ["predicted.py", *words])
    assert predicted.main() == 0
    [found] = json.loads(file.read_text())
    assert found["format"] == "int8"
    assert list(found["rounds"]) == ["1", "8", "32", "prompt"]
    for pairs in found["rounds"].values():
        assert len(pairs) == 2
        assert all(expected > 0 and measured > 0 for expected, measured in pairs)
    assert capsys.readouterr().out.startswith("int8 ")


def test_the_cache_is_written_everywhere(model: Path) -> None:
    """The prompts of the warm-up need more blocks than the streams leave."""
    args = EngineArgs(str(model), load_format="dummy", block_size=16)
    streams = 32 * 17  # blocks of 16 that 272 tokens take
    prompts = predicted._num_blocks(args) - streams
    assert predicted._PROMPTS * 33 <= prompts < predicted._WARM_UP_PROMPTS * 33
