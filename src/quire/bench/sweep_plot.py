"""`quire bench sweep plot` and `plot_pareto`: the results of a sweep as curves, in SVG files.

A point is a combination of settings: the means over its runs. Options are those of vLLM's sweep
that choose what is drawn.
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
from quire.log.writer import say

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
        say(f"{path}: {sum(len(curve.points) for curve in curves)} points")
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
    labels = [(tick, f"{tick:g}") for tick in plot.nice_ticks(largest)]
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


_THROUGHPUT = "output_throughput"
_OTHER_USERS = ("request_rate", "max_concurrent_requests")
"""Result fields with the number of users, used if the variable is missing."""
_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
_BOX = plot.Box(80, 60, 840, 400)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepParetoArgs:
    """Arguments of the chart."""

    user_count_var: str = "max_concurrency"
    """Variable with the number of users."""
    gpu_count_var: str | None = None
    """Variable with the number of devices; by default the product of the parallel sizes, or 1."""
    label_by: str = "max_concurrency,gpu_count"
    """Comma-separated variables shown as labels next to the points of the frontier."""
    dry_run: bool = False
    """Print what would be drawn without drawing it."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A point of the chart."""

    per_user: float
    per_device: float
    label: str


def draw_pareto(directory: str, args: SweepParetoArgs) -> Path:
    """Draw the figure and return its file. Raises ConfigError for a directory without results,
    and for results without throughput or number of users."""
    points = list(read_points(Path(directory)))
    places = [place for point in points if (place := _place(point, args)) is not None]
    if len(places) < len(points):
        say(f"{len(points) - len(places)} combinations tell no number of users")
    if not places:
        raise ConfigError(
            f"no result in {directory} has {_THROUGHPUT} and {quoted(args.user_count_var)}; name "
            "another variable with --user-count-var"
        )
    frontier = _frontier(places)
    path = Path(directory) / "pareto" / "PARETO.svg"
    say(f"{path}: {len(places)} points, {len(frontier)} of them on the frontier")
    if not args.dry_run:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, _pareto_figure(places, frontier))
    return path


def _place(point: Point, args: SweepParetoArgs) -> _Place | None:
    throughput = _number(point, _THROUGHPUT)
    users = next(
        (found for name in (args.user_count_var, *_OTHER_USERS) if (found := _number(point, name))),
        None,
    )
    if throughput is None or users is None:
        return None
    devices = _num_devices(point, args.gpu_count_var)
    shown = {**point, "gpu_count": f"{devices:g}"}
    names = [name.strip() for name in args.label_by.split(",")]
    label = ", ".join(f"{name}={shown[name]}" for name in names if name in shown)
    return _Place(throughput / users, throughput / devices, label)


def _num_devices(point: Point, name: str | None) -> float:
    given = None if name is None else _number(point, name)
    if given:
        return given
    product = 1.0
    for size in _SIZES:
        product *= _number(point, size) or 1.0
    return product


def _number(point: Point, name: str) -> float | None:
    """The value of a variable, which may be spelled with dashes; None if it is not a number."""
    for spelling in (name, name.replace("_", "-"), name.replace("-", "_")):
        value = point.get(spelling)
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            try:
                return float(value)
            except ValueError:
                continue
    return None


def _frontier(places: Sequence[_Place]) -> list[_Place]:
    found: list[_Place] = []
    for place in sorted(places, key=lambda one: (-one.per_user, -one.per_device)):
        if not found or place.per_device > found[-1].per_device:
            found.append(place)
    return found[::-1]


def _pareto_figure(places: Sequence[_Place], frontier: Sequence[_Place]) -> str:
    chart = plot.scatter_chart(
        _BOX,
        "output tokens/s for each device",
        "over tokens/s for each user",
        [(place.per_user, place.per_device) for place in places],
        [(place.per_user, place.per_device, place.label) for place in frontier],
    )
    return plot.document(960, 520, chart)
