"""The table as a picture: bytes of a weight against the divergence, on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tools.quality.measure import Row

from quire.bench import plot

_WIDTH, _HEIGHT, _LEFT, _TOP, _PITCH = 400.0, 300.0, 70.0, 90.0, 520.0
_KINDS = ("8-bit activations", "16-bit activations", "8-bit KV cache")


def draw(tables: Sequence[tuple[str, Sequence[Row]]]) -> str:
    """An SVG file with a panel for each model."""
    parts = [plot.text(20, 32, "What formats cost: divergence from float32", size=16, bold=True)]
    for number, kind in enumerate(_KINDS):
        x = 560 + number * 160.0
        parts.append(_dot(x, 28, _color(kind)))
        parts.append(plot.text(x + 10, 32, kind))
    for number, (name, rows) in enumerate(tables):
        box = plot.Box(_LEFT + number * _PITCH, _TOP, _WIDTH, _HEIGHT)
        parts.append(_panel(box, name, [row for row in rows if row.bytes_per_weight and row.mean]))
    return plot.document(_PITCH * len(tables) + 20, _TOP + _HEIGHT + 60, *parts)


def _panel(box: plot.Box, name: str, rows: Sequence[Row]) -> str:
    sizes = [row.bytes_per_weight or 0.0 for row in rows]
    ticks = plot.nice_ticks(0, max(sizes))
    lows = [math.floor(math.log10(row.mean)) for row in rows]
    low, high = min(lows), max(lows) + 1
    parts = [plot.text(box.left, box.top - 12, f"{name} (KL, nats)", size=14, bold=True)]

    def at(size: float, mean: float) -> tuple[float, float]:
        share = (math.log10(mean) - low) / (high - low)
        return box.left + box.width * size / ticks[-1], box.top + box.height * (1 - share)

    for power in range(low, high + 1):
        _, y = at(0, 10.0**power)
        parts.append(f"<path d='M{box.left:.1f} {y:.1f}h{box.width:.1f}' stroke='#e2d9ca'/>")
        parts.append(plot.text(box.left - 6, y + 4, f"1e{power}", size=11, anchor="end"))
    bottom = box.top + box.height
    for tick in ticks:
        x, _ = at(tick, 10.0**low)
        parts.append(plot.text(x, bottom + 16, f"{tick:g}", size=11, anchor="middle"))
    label = "bytes of a weight in memory"
    parts.append(plot.text(box.left + box.width / 2, bottom + 36, label, anchor="middle"))
    taken: list[tuple[float, float]] = []
    for row, size in sorted(zip(rows, sizes, strict=True), key=lambda pair: -pair[0].mean):
        x, y = at(size, row.mean)
        parts.append(_dot(x, y, _color(row.name)))
        parts.append(plot.text(x + 7, _free(x, y, taken) + 4, row.name, size=9))
    return "".join(parts)


def _free(x: float, y: float, taken: list[tuple[float, float]]) -> float:
    """Where a label is not upon another one: at y, or below."""
    while any(abs(x - other) < 90 and abs(y - line) < 9 for other, line in taken):
        y += 3
    taken.append((x, y))
    return y


def _dot(x: float, y: float, color: str) -> str:
    return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='{color}'/>"


def _color(name: str) -> str:
    if "KV" in name:
        return plot.COLORS[2]
    return plot.COLORS[0] if "a8" in name or "8-bit act" in name else plot.COLORS[1]
