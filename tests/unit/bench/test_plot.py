"""Charts: well-formed, in bounds, and with nothing unescaped."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from quire.bench import plot
from quire.bench.charts import draw


@pytest.mark.parametrize("high", [1, 0.0003, 97, 123456, 0, 1e9])
def test_ticks_are_round_and_span_the_data(high: float) -> None:
    ticks = plot.nice_ticks(high)
    assert ticks[0] == 0
    assert ticks[-1] >= high - 1e-9
    assert 2 <= len(ticks) <= 8 or high == 0


def test_percentiles() -> None:
    assert plot.percentile([1.0, 2.0, 3.0], 50) == 2.0
    assert plot.percentile([1.0, 2.0], 75) == 1.75
    assert plot.percentile([5.0], 99) == 5.0


def test_charts_are_well_formed_whatever_the_names() -> None:
    box = plot.Box(50, 50, 400, 100)
    name = "<script>&'\""
    text = plot.document(
        500, 500,
        plot.line_chart(box, name, "x", [plot.Series(name, [(0, 0), (3, 7)])]),
        plot.line_chart(box, "empty", "x", []),
        plot.histogram(box, name, "ms", [1, 2, 3, 1000]),
        plot.histogram(box, "empty", "ms", []),
        plot.bar_chart(box, name, "tok/s", [(name, 3.0), ("b", 0.0)]),
        plot.bar_chart(box, "zero", "tok/s", [("a", 0.0)]),
    )  # fmt: skip
    root = ET.fromstring(text)
    assert not [node for node in root.iter() if node.tag.endswith("script")]
    for node in root.iter("{http://www.w3.org/2000/svg}rect"):
        if node.get("x"):
            assert float(node.get("width", "0")) >= 0
            assert float(node.get("x", "0")) <= 450


def test_a_run_is_drawn_even_if_everything_failed() -> None:
    empty = {"start_times": [0.0], "ttfts": [0.0], "itls": [[]], "latencies": [0.0]}
    ET.fromstring(draw(empty))
    ET.fromstring(draw({key: [] for key in empty}))
    good = {"start_times": [5.0, 6.0], "ttfts": [0.1, 0.2], "itls": [[0.1], []],
            "latencies": [0.2, 0.2]}  # fmt: skip
    ET.fromstring(draw(good))
