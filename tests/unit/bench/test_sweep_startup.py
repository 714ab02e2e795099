"""`quire bench sweep startup`: which commands are run, and what lies in the folder afterwards."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from quire.cli import main

START = """
import json, sys
words = sys.argv[1:]
if "--fails" in words:
    sys.exit("no start")
path = words[words.index("--output-json") + 1]
with open(sys.argv[0] + ".notes", "a") as notes:
    notes.write(" ".join(words[:-2]) + "\\n")
json.dump({"avg_warm_startup_time": 0.5, "warm_startup_times": [0.5]}, open(path, "w"))
"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A sweep whose command makes numbers up: two engines with two measurements each."""
    (tmp_path / "start.py").write_text(START)
    files = {
        "engines": [{"max_model_len": 64}, {"max_model_len": 128}],
        "starts": {"few": {"num_iters_warm": 1}, "many": {"num_iters_warm": 9}},
    }
    for name, data in files.items():
        (tmp_path / name).write_text(json.dumps(data))
    return [
        "bench", "sweep", "startup",
        "--startup-cmd", f"{sys.executable} {tmp_path / 'start.py'} --num-iters-warm 3 --seed 1",
        "--serve-params", str(tmp_path / "engines"),
        "--startup-params", str(tmp_path / "starts"),
        "--output-dir", str(tmp_path / "out"),
        "--experiment-name", "mine",
    ]  # fmt: skip


def notes(tmp_path: Path) -> list[str]:
    path = tmp_path / "start.py.notes"
    return path.read_text().splitlines() if path.exists() else []


def test_every_engine_meets_every_measurement(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--num-runs", "2"]) == 0
    asked = [
        f"--seed 1 --max-model-len {length} --num-iters-warm {count}"
        for length in (64, 128)
        for count in (1, 9)
        for _ in range(2)
    ]
    assert notes(tmp_path) == asked
    place = tmp_path / "out" / "mine"
    runs: list[dict[str, Any]] = json.loads(
        (place / "SERVE-max_model_len=64-STARTUP-many" / "summary.json").read_text()
    )
    assert [run["run_number"] for run in runs] == [0, 1]
    assert {(run["max_model_len"], run["num_iters_warm"]) for run in runs} == {(64, 9)}
    rows = list(csv.DictReader((place / "summary.csv").read_text().splitlines()))
    assert len(rows) == 8
    assert {row["avg_warm_startup_time"] for row in rows} == {"0.5"}
    assert "avg_warm_startup_time" in capsys.readouterr().out


def test_a_sweep_is_resumed(tmp_path: Path, words: list[str]) -> None:
    assert main(words) == 0
    assert main(words) != 0
    assert main([*words, "--num-runs", "2", "--resume"]) == 0
    assert len(notes(tmp_path)) == 8


def test_nothing_runs_in_a_dry_run(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--dry-run"]) == 0
    assert not notes(tmp_path)
    assert not (tmp_path / "out").exists()
    assert capsys.readouterr().out.count("benchmark: ") == 4


def test_a_failure_is_told(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    place = words.index("--startup-cmd") + 1
    words[place] += " --fails"
    assert main(words) != 0
    assert "no start" in capsys.readouterr().err
    assert main([*words, "--num-runs", "0"]) != 0
    assert "num_runs must be at least 1" in capsys.readouterr().err
