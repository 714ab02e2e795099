"""The report of throughput and latency by load."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from quire.bench.charts import LoadPoint, parse_levels, report
from quire.bench.load import TrafficArgs
from quire.errors import ConfigError


def summary(level: int, **changed: Any) -> dict[str, Any]:
    return {
        "errors": ["", "", "refused"],
        "ttfts": [0.010 * level, 0.030 * level, 0.0],
        "itls": [[0.005, 0.015], [0.005], []],
        "latencies": [0.1, 0.3, 0.0],
        "output_throughput": 100.0 * level, "request_throughput": 10.0 * level,
        "total_token_throughput": 300.0 * level,
        "completed": 2, "failed": 1, "duration": 0.5,
        **changed,
    }  # fmt: skip


class _Tags(HTMLParser):
    """Collects the tags, and checks that they are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:  # noqa: ARG002
        self.tags.append(tag)
        if tag not in ("meta", "path", "rect", "polyline"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:  # noqa: ARG002
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_report_has_every_level_and_loads_nothing() -> None:
    points = [LoadPoint.of(summary(level), level) for level in (1, 2, 8)]
    page = report({"model": "<b>", "server": "here"}, points)
    tags = _Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.tags.count("svg") == 6
    assert "script" not in tags.tags
    assert "b" not in tags.tags
    assert not re.search(r"(href|src)=|url\(", page)
    assert "The most output is 800.0 tokens per second, with 8 requests at once" in page
    assert page.count("<tr>") == 4
    assert "<title>median: 20</title>" in page  # the median of 10 and 30 ms, without the failure
    assert "<td>160.0</td>" in page  # of eight at once


def test_one_level_without_a_limit_is_a_report_too() -> None:
    page = report({"model": "m"}, [LoadPoint.of(summary(1), None)])
    assert "no limit" in page
    assert "nan" not in page


def test_nothing_was_answered() -> None:
    nothing = {name: [] for name in ("errors", "ttfts", "itls", "latencies")}
    page = report({"model": "m"}, [LoadPoint.of(summary(1, **nothing), 4)])
    assert "<td>0.0</td>" in page


def test_levels() -> None:
    traffic = TrafficArgs()
    assert parse_levels("", traffic) == [None]
    assert parse_levels("8, 1,2,2", traffic) == [1, 2, 8]
    assert parse_levels("", TrafficArgs(max_concurrency=3)) == [3]
    for text in ("1,x", "0", "1,,2", "-1", "1.5"):
        with pytest.raises(ConfigError, match="must be numbers of requests, such as 1,2,4,8"):
            parse_levels(text, traffic)
    with pytest.raises(ConfigError, match="leave it out"):
        parse_levels("1", TrafficArgs(max_concurrency=3))
