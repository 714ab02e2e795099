"""`quire bench sweep plot`: which points and curves are drawn, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.bench.sweep.plot import SweepPlotArgs, draw_sweep
from quire.cli import main
from quire.errors import ConfigError


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """Two settings of the server, three of the benchmark, two runs of each."""
    for seqs in (8, 16):
        for rate in (1, 2, 4):
            place = tmp_path / f"SERVE-{seqs}-BENCH-{rate}"
            place.mkdir()
            runs = [
                {"max_num_seqs": seqs, "rate": rate, "model": "m", "run_number": number,
                 "total_token_throughput": 100 * rate, "median_ttft_ms": seqs + number, "itls": []}
                for number in (0, 1)
            ]  # fmt: skip
            (place / "summary.json").write_text(json.dumps(runs))
    return tmp_path


def drawn(directory: Path, **options: Any) -> list[str]:
    return [path.read_text() for path in draw_sweep(str(directory), SweepPlotArgs(**options))]


def test_a_curve_for_each_setting(experiment: Path) -> None:
    [figure] = drawn(experiment, curve_by="max_num_seqs")
    assert (experiment / "FIGURE.svg").read_text() == figure
    assert figure.count("<polyline") == 2
    assert "max_num_seqs=8" in figure
    assert "median_ttft_ms (over total_token_throughput)" in figure
    assert ">400</text>" in figure
    first = figure.split("<polyline points='")[1].split("'")[0].split()
    assert len(first) == 3


def test_a_figure_for_each_setting(experiment: Path) -> None:
    options = {"fig_by": "model,rate", "fig_dir": "charts", "fig_name": "t", "var_x": "rate"}
    assert len(drawn(experiment, **options)) == 3
    names = sorted(path.name for path in (experiment / "charts").iterdir())
    assert names == [f"t-model=m-rate={rate}.svg" for rate in (1, 2, 4)]


def test_points_are_filtered(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for conditions, count in (
        ("rate<2", 2), ("rate<=2,max_num_seqs==8", 2), ("rate!=1,max_num_seqs>8", 2),
        ("model==m", 6), ("rate>=4", 2), ("", 6),
    ):  # fmt: skip
        assert drawn(experiment, filter_by=conditions)
        assert f": {count} points" in capsys.readouterr().out


def test_a_dry_run_draws_nothing(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "sweep", "plot", str(experiment), "--dry-run"]) == 0
    assert "FIGURE.svg: 6 points" in capsys.readouterr().out
    assert not list(experiment.glob("*.svg"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"var_y": "mean_ttft"}, "has 'mean_ttft'; they have max_num_seqs"),
        ({"curve_by": "rate,none"}, "has 'none'"), ({"filter_by": "rate=1"}, "is no condition"),
        ({"filter_by": "rate<x"}, "does not compare"),
        ({"filter_by": "rate>9"}, "no point is left"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_told(experiment: Path, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        draw_sweep(str(experiment), SweepPlotArgs(**options))


def test_a_directory_without_results(tmp_path: Path) -> None:
    assert main(["bench", "sweep", "plot"]) == 1
    with pytest.raises(ConfigError, match="no experiment of a sweep"):
        draw_sweep(str(tmp_path), SweepPlotArgs())
    for text in ("{", "{}", "[1]"):
        (tmp_path / "summary.json").write_text(text)
        with pytest.raises(ConfigError, match=r"summary\.json"):
            draw_sweep(str(tmp_path), SweepPlotArgs())
