"""Metrics of HTTP requests, and the load report in a reply's header.

All labels come from closed sets: an unknown path or method is counted as `other`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from quire.metrics.buckets import HTTP_DURATION_S
from quire.metrics.engine_series import EngineSeries
from quire.metrics.metric_set import MetricSet
from quire.metrics.series import Counter, Family, Histogram, Summary

_METHODS = ("GET", "POST", "OPTIONS", "HEAD", "other")
_STATUSES = ("2xx", "3xx", "4xx", "5xx", "gone")
OTHER = "other"


class HttpMetrics:
    """Metrics of one server. A series exists from its first request on."""

    def __init__(self, paths: Iterable[str]) -> None:
        """`paths`: the endpoints; all other paths count as `other`."""
        self._paths = frozenset(paths)
        self.metric_set = MetricSet({})
        self._requests: Family[Counter] = self.metric_set.counters(
            "http_requests", "Total number of requests by method, status and handler.",
            ("handler", "method", "status"), [],
        )  # fmt: skip
        self._durations: Family[Histogram] = Family(
            "http_request_duration_seconds", "Duration of HTTP requests in seconds.", "histogram",
            ("handler", "method"), {},
        )  # fmt: skip
        self._request_bytes: Family[Summary] = Family(
            "http_request_size_bytes", "Content-Length of requests, 0 without one.", "summary",
            ("handler",), {},
        )  # fmt: skip
        self._reply_bytes: Family[Summary] = Family(
            "http_response_size_bytes", "Content-Length of replies, 0 without one.", "summary",
            ("handler",), {},
        )  # fmt: skip
        self.metric_set.families += [self._durations, self._request_bytes, self._reply_bytes]
        self._all_durations = self.metric_set.histogram(
            "http_request_duration_highr_seconds",
            "Duration of HTTP requests in seconds, over all handlers.",
            HTTP_DURATION_S,
        )

    def observe(
        self,
        path: str,
        method: str,
        status: int,
        seconds: float,
        request_bytes: int = 0,
        reply_bytes: int = 0,
    ) -> None:
        """Record one request; status 0: the client disconnected before the answer began. Sizes come
        from the headers."""
        handler = path if path in self._paths else OTHER
        method = method if method in _METHODS else OTHER
        kind = f"{status // 100}xx" if status else "gone"
        kind = kind if kind in _STATUSES else OTHER
        self._requests.series.setdefault((handler, method, kind), Counter()).inc()
        key = (handler, method)
        if key not in self._durations.series:
            self._durations.series[key] = Histogram(HTTP_DURATION_S)
        self._durations.series[key].observe(seconds)
        self._all_durations.observe(seconds)
        self._request_bytes.series.setdefault((handler,), Summary()).observe(request_bytes)
        self._reply_bytes.series.setdefault((handler,), Summary()).observe(reply_bytes)


LOAD_FORMAT_HEADER = "endpoint-load-metrics-format"
LOAD_HEADER = "endpoint-load-metrics"


def load_report(form: str, series: EngineSeries) -> str | None:
    """The header's value in this format; None for an unknown format, as in vLLM, because a gateway
    may ask every server for its preferred format."""
    metrics = {
        "num_requests_waiting": float(series.num_requests_waiting.value),
        "kv_cache_usage_perc": float(series.kv_cache_usage_perc.value),
    }
    if form.lower() == "text":
        return "TEXT " + ", ".join(f"named_metrics.{name}={metrics[name]}" for name in metrics)
    if form.lower() == "json":
        return "JSON " + json.dumps({"named_metrics": metrics})
    return None
