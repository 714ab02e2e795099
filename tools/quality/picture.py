"""The table as a picture: a line for each format, its divergences as dots on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tools.quality.measure import Row

from quire.bench import plot

_WIDTH, _LEFT, _TOP, _LINE = 320.0, 210.0, 90.0, 17.0
_PITCH = _LEFT + _WIDTH + 40
_KINDS = ("16-bit activations", "8-bit activations", "8-bit KV cache")


def draw(tables: Sequence[tuple[str, Sequence[Row]]]) -> str:
    """An SVG file with a panel for each model."""
    parts = [plot.text(20, 32, "What formats cost: divergence from float32", size=16, bold=True)]
    for number, kind in enumerate(_KINDS):
        x = 500 + number * 160.0
        parts.append(_dot(x, 28, plot.COLORS[number]))
        parts.append(plot.text(x + 10, 32, kind))
    panels = [(name, _lines(rows)) for name, rows in tables]
    for number, (name, lines) in enumerate(panels):
        parts.append(_panel(_LEFT + number * _PITCH, name, lines))
    height = _TOP + _LINE * max(len(lines) for _, lines in panels) + 60
    return plot.document(_PITCH * len(tables) + 20, height, *parts)


def _lines(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Formats of weights with the rows of each, the largest weights first."""
    lines: dict[str, list[Row]] = {}
    for row in rows:
        if row.bytes_per_weight and row.mean:
            lines.setdefault(_weights_of(row.name), []).append(row)
    return sorted(lines.items(), key=lambda line: -(line[1][0].bytes_per_weight or 0))


def _weights_of(name: str) -> str:
    """`int8` of `int8_w8a8, KV int8`."""
    return name.removesuffix(", KV int8").removesuffix(", a8").split("_w")[0]


def _kind(name: str) -> int:
    """A place in `_KINDS`. llama.cpp rounds activations to 8 bits but for weights of 16 bits."""
    if "KV" in name:
        return 2
    return int("a8" in name or (name.startswith("llama.cpp") and "F16" not in name))


def _panel(left: float, name: str, lines: Sequence[tuple[str, list[Row]]]) -> str:
    means = [math.log10(row.mean) for _, rows in lines for row in rows]
    low, high = math.floor(min(means)), math.floor(max(means)) + 1
    bottom = _TOP + _LINE * len(lines)
    parts = [plot.text(left, _TOP - 30, f"{name} (KL, nats)", size=14, bold=True)]
    parts.append(plot.text(left - 10, _TOP - 10, "bytes a weight", size=11, anchor="end"))
    for power in range(low, high + 1):
        x = left + _WIDTH * (power - low) / (high - low)
        parts.append(f"<path d='M{x:.1f} {_TOP:.1f}V{bottom:.1f}' stroke='#e2d9ca'/>")
        parts.append(plot.text(x, bottom + 16, f"1e{power}", size=11, anchor="middle"))
    for number, (weights, rows) in enumerate(lines):
        y = _TOP + _LINE * (number + 0.5)
        parts.append(plot.text(left - 50, y + 4, weights, size=11, anchor="end"))
        size = f"{rows[0].bytes_per_weight:.2f}"
        parts.append(plot.text(left - 10, y + 4, size, size=11, anchor="end"))
        parts.append(f"<path d='M{left:.1f} {y:.1f}h{_WIDTH:.1f}' stroke='#f0e9dc'/>")
        for row in rows:
            x = left + _WIDTH * (math.log10(row.mean) - low) / (high - low)
            parts.append(_dot(x, y, plot.COLORS[_kind(row.name)]))
    return "".join(parts)


def _dot(x: float, y: float, color: str) -> str:
    return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='{color}'/>"
