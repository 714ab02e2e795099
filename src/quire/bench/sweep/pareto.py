"""`quire bench sweep plot_pareto`: the Pareto-optimal settings of a sweep, as an SVG file.

A point is a combination of settings: output tokens per second for each user, and for each device.
The frontier has the points of which no other one is better in both. Options are those of vLLM's
command of this name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quire.bench import plot
from quire.bench.sweep.plot import Point, read_points
from quire.errors import ConfigError, quoted
from quire.files import write_text

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
        print(f"{len(points) - len(places)} combinations tell no number of users")
    if not places:
        raise ConfigError(
            f"no result in {directory} has {_THROUGHPUT} and {quoted(args.user_count_var)}; name "
            "another variable with --user-count-var"
        )
    frontier = _frontier(places)
    path = Path(directory) / "pareto" / "PARETO.svg"
    print(f"{path}: {len(places)} points, {len(frontier)} of them on the frontier")
    if not args.dry_run:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, _figure(places, frontier))
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
    """Return the Pareto-optimal points, sorted by tokens per user."""
    found: list[_Place] = []
    for place in sorted(places, key=lambda one: (-one.per_user, -one.per_device)):
        if not found or place.per_device > found[-1].per_device:
            found.append(place)
    return found[::-1]


def _figure(places: Sequence[_Place], frontier: Sequence[_Place]) -> str:
    chart = plot.scatter_chart(
        _BOX,
        "output tokens/s for each device",
        "over tokens/s for each user",
        [(place.per_user, place.per_device) for place in places],
        [(place.per_user, place.per_device, place.label) for place in frontier],
    )
    return plot.document(960, 520, chart)
