"""`quire bench sweep plot`: the results of a sweep as curves, in SVG files.

A point is a combination of settings: the means over its runs. Options are those of vLLM's sweep
that choose what is drawn; without its further ones (rows and columns, bins, other scales) a file
has one chart.
"""

from __future__ import annotations

import json
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from quire.bench import plot
from quire.errors import ConfigError, quoted, reason
from quire.files import write_text

Point = dict[str, Any]
"""Values shared by all runs of a combination, and means of numbers."""

_CONDITION = re.compile(r"\s*([\w.-]+)\s*(<=|>=|==|!=|<|>)\s*(\S+)\s*")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    "<": operator.lt, ">": operator.gt,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlotArgs:
    """Arguments of the figures."""

    fig_dir: str = ""
    """Subdirectory for the figures; by default the experiment's directory."""
    fig_by: str = ""
    """Comma-separated variables: a figure for each combination of their values."""
    curve_by: str = ""
    """Comma-separated variables: a curve for each combination of their values."""
    var_x: str = "total_token_throughput"
    """Variable of the x axis."""
    var_y: str = "median_ttft_ms"
    """Variable of the y axis."""
    filter_by: str = ""
    """Comma-separated conditions for the points to draw:
    max_concurrency<1000,max_num_seqs<=64."""
    fig_name: str = "FIGURE"
    """Prefix of the file names; values of --fig-by follow."""
    dry_run: bool = False
    """Print what would be drawn without drawing it."""


def draw_sweep(directory: str, args: SweepPlotArgs) -> list[Path]:
    """Draw the figures; return their files. Raises ConfigError for a directory without results,
    an unknown variable or an invalid condition."""
    points = [point for point in read_points(Path(directory)) if _passes(point, args.filter_by)]
    for name in (args.var_x, args.var_y, *_names(args.fig_by), *_names(args.curve_by)):
        if not any(name in point for point in points):
            raise ConfigError(f"no result in {directory} has {quoted(name)}{_known(points)}")
    figures = []
    for group, own in _grouped(points, args.fig_by).items():
        ending = "".join(f"-{part}" for part in group)
        path = Path(directory) / args.fig_dir / f"{_file_name(args.fig_name + ending)}.svg"
        curves = [_curve(", ".join(name), each, args) for name, each in _curves(own, args)]
        print(f"{path}: {sum(len(curve.points) for curve in curves)} points")
        if not args.dry_run:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, _figure(curves, args, ", ".join(group)))
        figures.append(path)
    return figures


def read_points(directory: Path) -> Iterator[Point]:
    """Yield the points of an experiment. Raises ConfigError."""
    files = sorted(directory.rglob("summary.json"))
    if not files:
        raise ConfigError(
            f"{directory} must be the directory of a sweep experiment, with a summary.json"
        )
    for file in files:
        try:
            runs = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file} cannot be read: {reason(error)}") from None
        if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
            raise ConfigError(f"{file}: expected a list of runs")
        if runs:
            yield _mean_of(runs)


def _mean_of(runs: Sequence[Mapping[str, Any]]) -> Point:
    point = {}
    for name, first in runs[0].items():
        values = [run.get(name) for run in runs]
        if all(value == first for value in values):
            point[name] = first
        elif all(_is_number(value) for value in values):
            point[name] = mean(values)  # type: ignore[type-var]
    return point


def _passes(point: Point, conditions: str) -> bool:
    for condition in _names(conditions):
        found = _CONDITION.fullmatch(condition)
        if found is None:
            raise ConfigError(
                f"--filter-by {quoted(condition)} must be a condition such as max_concurrency<64"
            )
        name, sign, text = found.groups()
        value = point.get(name)
        try:
            wanted: Any = float(text) if _is_number(value) else text
            if value is None or not _COMPARE[sign](value, wanted):
                return False
        except (ValueError, TypeError):
            raise ConfigError(
                f"--filter-by {quoted(condition)}: {name} is {quoted(value)}, which does not "
                "compare with that"
            ) from None
    return True


def _grouped(points: Iterable[Point], variables: str) -> dict[tuple[str, ...], list[Point]]:
    groups: dict[tuple[str, ...], list[Point]] = defaultdict(list)
    for point in points:
        key = tuple(f"{name}={point.get(name)}" for name in _names(variables))
        groups[key].append(point)
    return groups


def _curves(
    points: Iterable[Point], args: SweepPlotArgs
) -> Iterable[tuple[tuple[str, ...], list[Point]]]:
    return _grouped(points, args.curve_by).items()


def _curve(name: str, points: Iterable[Point], args: SweepPlotArgs) -> plot.Series:
    pairs = [(point.get(args.var_x), point.get(args.var_y)) for point in points]
    return plot.Series(name, sorted(pair for pair in pairs if all(map(_is_number, pair))))  # type: ignore[misc]


def _figure(curves: Sequence[plot.Series], args: SweepPlotArgs, group: str) -> str:
    largest = max((x for curve in curves for x, _ in curve.points), default=1.0)
    labels = [(tick, f"{tick:g}") for tick in plot.nice_ticks(0, largest)]
    title = f"{args.var_y}{f', {group}' * bool(group)}"
    box = plot.Box(80, 60, 840, 400)
    return plot.document(
        960, 520, plot.line_chart(box, title, f"over {args.var_x}", curves, labels)
    )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _known(points: Sequence[Point]) -> str:
    names = sorted({name for point in points for name in point if _is_number(point[name])})
    return f"; they have {', '.join(names)}" if names else ": no point is left"


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.=,+-]+", "_", text)[:200]
