"""`quire bench sweep plot`: which points and curves are drawn, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.bench.sweep_plot import SweepParetoArgs, SweepPlotArgs, draw_pareto, draw_sweep
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
        ({"curve_by": "rate,none"}, "has 'none'"), ({"filter_by": "rate=1"}, "must be a condition"),
        ({"filter_by": "rate<x"}, "does not compare"),
        ({"filter_by": "rate>9"}, "no point is left"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_told(experiment: Path, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        draw_sweep(str(experiment), SweepPlotArgs(**options))


def test_a_directory_without_results(tmp_path: Path) -> None:
    assert main(["bench", "sweep", "plot"]) == 1
    with pytest.raises(ConfigError, match="must be the directory of a sweep experiment"):
        draw_sweep(str(tmp_path), SweepPlotArgs())
    for text in ("{", "{}", "[1]"):
        (tmp_path / "summary.json").write_text(text)
        with pytest.raises(ConfigError, match=r"summary\.json"):
            draw_sweep(str(tmp_path), SweepPlotArgs())


def pareto_experiment(directory: Path, runs: list[dict[str, Any]]) -> str:
    for number, run in enumerate(runs):
        (directory / str(number)).mkdir()
        (directory / str(number) / "summary.json").write_text(json.dumps([run]))
    return str(directory)


def test_the_frontier_has_what_no_other_setting_beats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        {"output_throughput": 10, "max_concurrency": 1},  # the one with 4 devices is better
        {"output_throughput": 30, "max_concurrency": 6},
        {"output_throughput": 28, "max_concurrency": 7},  # beaten in both
        {"output_throughput": 40, "request-rate": "20"},
        {"output_throughput": 60, "max_concurrency": 6, "tensor_parallel_size": 4},
        {"output_throughput": 60},
    ]
    path = draw_pareto(pareto_experiment(tmp_path, runs), SweepParetoArgs(label_by="gpu_count"))
    shown = capsys.readouterr().out
    assert "1 combinations tell no number of users" in shown
    assert "5 points, 3 of them on the frontier" in shown
    figure = path.read_text()
    assert path == tmp_path / "pareto" / "PARETO.svg"
    assert figure.count("<circle") == 5 + 3
    assert figure.count(">gpu_count=1</text>") == 2
    assert figure.count(">gpu_count=4</text>") == 1


def test_devices_and_users_may_have_other_names(tmp_path: Path) -> None:
    runs = [{"output_throughput": 10, "seats": 2, "boards": 5, "max_concurrency": 1}]
    names = SweepParetoArgs(user_count_var="seats", gpu_count_var="boards", dry_run=True)
    assert not draw_pareto(pareto_experiment(tmp_path, runs), names).exists()


def test_a_frontier_needs_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="must be the directory of a sweep experiment"):
        draw_pareto(str(tmp_path), SweepParetoArgs())
    pareto_experiment(tmp_path, [{"output_throughput": 10}])
    assert main(["bench", "sweep", "plot_pareto", str(tmp_path)]) != 0
    assert "--user-count-var" in capsys.readouterr().err
    assert main(["bench", "sweep", "plot_pareto"]) != 0
