"""Charts as SVG text, drawn by hand: no plotting library, readable in any browser.

Used by `quire bench serve --plot` and the side-by-side benchmark. Knows shapes and numbers,
and nothing of where they come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

COLORS = ("#a8391f", "#1f7a80", "#c08a1e", "#5b4b8a", "#4f7a3a", "#8a5a44", "#5a6b7b")
_INK, _SOFT, _RULE, _PAPER = "#231e19", "#685e53", "#e2d9ca", "#fffdf9"
_FONT = "font-family='system-ui, sans-serif'"


@dataclass(frozen=True, slots=True)
class Series:
    """One line: points (x, y) in ascending x."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Box:
    """Area of a panel's data, in pixels."""

    left: float
    top: float
    width: float
    height: float


def nice_ticks(high: float) -> list[float]:
    """About five round numbers that span [0, high]."""
    span = max(high, 1e-12)
    step = 10 ** math.floor(math.log10(span / 5))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 5)
    ticks = [0.0]
    while ticks[-1] < high - 1e-9 * span:
        ticks.append(len(ticks) * step)
    return [round(tick, 12) for tick in ticks]


def document(width: float, height: float, *parts: str) -> str:
    """A whole SVG file."""
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:g} {height:g}' "
        f"width='{width:g}' height='{height:g}' {_FONT}>"
        f"<rect width='100%' height='100%' fill='{_PAPER}'/>"
    )
    return head + "".join(parts) + "</svg>\n"


def text(
    x: float, y: float, value: str, *, size: int = 12, anchor: str = "start", bold: bool = False
) -> str:
    """A line of text; `anchor` is start, middle or end."""
    weight = " font-weight='600'" if bold else ""
    color = _INK if bold or size > 12 else _SOFT
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' text-anchor='{anchor}' "
        f"fill='{color}'{weight}>{escape(value)}</text>"
    )


def line_chart(
    box: Box,
    title: str,
    unit: str,
    series: Sequence[Series],
    x_labels: Sequence[tuple[float, str]] | None = None,
    *,
    marks_points: bool = False,
) -> str:
    """Lines over a shared x axis, with a legend; the axis is in seconds unless it is labelled.

    `marks_points`: every point has a dot, whose value a browser shows under the pointer.
    """
    points = [point for one in series for point in one.points]
    if not points:
        return text(box.left, box.top + 20, f"{title}: no data")
    if x_labels is None:
        x_labels = [(tick, f"{tick:g} s") for tick in nice_ticks(max(x for x, _ in points))]
    x_ticks = [x for x, _ in x_labels]
    y_ticks = nice_ticks(max(max(y for _, y in points), 1e-9))
    parts = [text(box.left, box.top - 12, f"{title} ({unit})", size=14, bold=True)]
    parts += _axes(box, x_labels, y_ticks)
    for number, one in enumerate(series):
        color = COLORS[number % len(COLORS)]
        path = " ".join(
            f"{_scale(x, x_ticks, box.left, box.left + box.width):.1f},"
            f"{_scale(y, y_ticks, box.top + box.height, box.top):.1f}"
            for x, y in one.points
        )
        parts.append(
            f"<polyline points='{path}' fill='none' stroke='{color}' stroke-width='1.8' "
            "stroke-linejoin='round'/>"
        )
        for (_, y), place in zip(one.points, path.split(), strict=True) if marks_points else ():
            parts.append(_dot(place, f"{one.name}: {y:,.4g}", color))
    return "".join([*parts, *_legends(box, [one.name for one in series])])


def scatter_chart(
    box: Box,
    title: str,
    unit: str,
    points: Sequence[tuple[float, float]],
    line: Sequence[tuple[float, float, str]],
) -> str:
    """Points, and a line through some of them, which have labels."""
    x_ticks = nice_ticks(max(max(x for x, _ in points), 1e-9))
    y_ticks = nice_ticks(max(max(y for _, y in points), 1e-9))

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            _scale(x, x_ticks, box.left, box.left + box.width),
            _scale(y, y_ticks, box.top + box.height, box.top),
        )

    parts = [text(box.left, box.top - 12, f"{title} ({unit})", size=14, bold=True)]
    parts += _axes(box, [(tick, f"{tick:g}") for tick in x_ticks], y_ticks)
    for x, y in (at(*point) for point in points):
        parts.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='{_SOFT}'/>")
    places = [(*at(x, y), label) for x, y, label in line]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
    parts.append(f"<polyline points='{path}' fill='none' stroke='{COLORS[0]}' stroke-width='1.8'/>")
    for x, y, label in places:
        parts.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4.5' fill='{COLORS[0]}'/>")
        parts.append(text(x, y - 8, label, size=10, anchor="end"))
    return "".join(parts)


def histogram(box: Box, title: str, unit: str, values: Sequence[float], bins: int = 40) -> str:
    """Counts of values from 0 to their 99.5th percentile, with the median and p99 marked."""
    if not values:
        return text(box.left, box.top + 20, f"{title}: no data")
    ordered = sorted(values)
    ticks = nice_ticks(max(percentile(ordered, 99.5), 1e-9))
    counts = [0] * bins
    for value in ordered:
        counts[min(bins - 1, int(value / ticks[-1] * bins))] += 1
    parts = [text(box.left, box.top - 12, f"{title} ({unit})", size=14, bold=True)]
    bottom, step = box.top + box.height, box.width / bins
    for index, count in enumerate(counts):
        height = box.height * count / max(counts)
        parts.append(_bar(box.left + index * step, bottom - height, step - 1, height, COLORS[0]))
    parts.append(_rule(box.left, bottom, box.left + box.width, bottom))
    for tick in ticks:
        x = _scale(tick, ticks, box.left, box.left + box.width)
        parts.append(text(x, bottom + 16, f"{tick:g}", size=11, anchor="middle"))
    marks = f"median {percentile(ordered, 50):.1f}, p99 {percentile(ordered, 99):.1f}"
    parts.append(text(box.left + box.width, box.top - 12, marks, anchor="end"))
    return "".join(parts)


def bar_chart(box: Box, title: str, unit: str, bars: Sequence[tuple[str, float]]) -> str:
    """Horizontal bars with their values; colours follow the order of the names."""
    parts = [text(box.left, box.top - 10, f"{title} ({unit})", size=14, bold=True)]
    longest = max((value for _, value in bars), default=0) or 1
    pitch = box.height / max(1, len(bars))
    names = 150
    for number, (name, value) in enumerate(bars):
        y = box.top + number * pitch
        width = (box.width - names - 70) * value / longest
        parts.append(text(box.left + names - 8, y + pitch / 2 + 4, name, anchor="end"))
        parts.append(_bar(box.left + names, y + 3, width, pitch - 6, COLORS[number % len(COLORS)]))
        parts.append(text(box.left + names + width + 6, y + pitch / 2 + 4, f"{value:,.4g}"))
    return "".join(parts)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return a percentile of an ascending list, by linear interpolation."""
    place = (len(ordered) - 1) * share / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _scale(value: float, ticks: Sequence[float], start: float, end: float) -> float:
    span = (ticks[-1] - ticks[0]) or 1.0
    return start + (value - ticks[0]) / span * (end - start)


def _axes(box: Box, x_labels: Sequence[tuple[float, str]], y_ticks: Sequence[float]) -> list[str]:
    parts = []
    for tick in y_ticks:
        y = _scale(tick, y_ticks, box.top + box.height, box.top)
        parts.append(_rule(box.left, y, box.left + box.width, y))
        parts.append(text(box.left - 6, y + 4, f"{tick:g}", size=11, anchor="end"))
    x_ticks = [x for x, _ in x_labels]
    for tick, name in x_labels:
        x = _scale(tick, x_ticks, box.left, box.left + box.width)
        parts.append(text(x, box.top + box.height + 16, name, size=11, anchor="middle"))
    return parts


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f"<path d='M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}' stroke='{_RULE}'/>"


def _bar(x: float, y: float, width: float, height: float, color: str) -> str:
    return (
        f"<rect x='{x:.1f}' y='{y:.1f}' width='{max(width, 0):.1f}' height='{max(height, 0):.1f}' "
        f"rx='1.5' fill='{color}'/>"
    )


def _dot(place: str, value: str, color: str) -> str:
    x, y = place.split(",")
    return (
        f"<circle cx='{x}' cy='{y}' r='3.5' fill='{color}'><title>{escape(value)}</title></circle>"
    )


def _legends(box: Box, names: Sequence[str]) -> list[str]:
    """The names of several lines: side by side if they are short, otherwise in a column."""
    if len(names) < 2:
        return []
    widths = [7 * len(name) + 26 for name in names]
    is_row = sum(widths) < box.width / 2
    parts, right = [], box.left + box.width
    for number, (name, width) in enumerate(zip(names, widths, strict=True)):
        y = box.top - 12 + (0 if is_row else 16 * number)
        parts.append(_legend(right, y, name, COLORS[number % len(COLORS)]))
        right -= width if is_row else 0
    return parts


def _legend(right: float, y: float, name: str, color: str) -> str:
    return f"<circle cx='{right - 5:.1f}' cy='{y - 4:.1f}' r='4.5' fill='{color}'/>" + text(
        right - 14, y, name, anchor="end"
    )
