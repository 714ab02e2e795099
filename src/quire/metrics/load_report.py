"""The engine's load as a response header (ORCA), for load-balancing gateways.

A request enables it with the header `endpoint-load-metrics-format: TEXT` (or JSON), as in vLLM.
"""

from __future__ import annotations

import json

from quire.metrics.engine_series import EngineSeries

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
