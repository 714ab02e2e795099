"""`scale_on_queue_seconds`: how many replicas a deployment of Ray Serve should have.

Each replica reports after how many seconds it expects the first token of a request that would
arrive now. A count of requests, which Ray Serve uses by default, does not tell a short prompt from
a long one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

QUEUE_SECONDS = "queue_seconds"
PLACES = "places"
"""Number of requests that a replica computes at once."""
OPEN_REQUESTS = "open_requests"
"""Number of requests that a replica has. Ray Serve counts the calls of front ends, which are other
numbers."""
TARGET_S = 2.0
"""More replicas are started while a request waits longer for its first token."""
_MOST_AT_ONCE = 2.0
"""Factor by which replicas become more in one decision."""


def scale_on_queue_seconds(context: Any) -> tuple[float, dict[str, Any]]:
    """Ray Serve's policy function. `context`: its `AutoscalingContext`."""
    metrics = context.aggregated_metrics or {}
    counts = list(_values(metrics, OPEN_REQUESTS))
    wanted = wanted_replicas(
        context.current_num_replicas,
        sum(counts) if counts else context.total_num_requests,
        _values(metrics, QUEUE_SECONDS),
        _values(metrics, PLACES),
    )
    least, most = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
    return float(min(max(wanted, least), most)), {}


def wanted_replicas(
    num_replicas: int, num_requests: float, queue_s: Iterable[float], places: Iterable[float]
) -> int:
    """The number of replicas with which the mean wait would be `TARGET_S`: waits grow and shrink
    with the number of requests for each replica. No fewer than the requests need places."""
    waits, rooms = list(queue_s), list(places)
    if num_replicas == 0 or not waits:
        return max(num_replicas, int(num_requests > 0))
    factor = min(_MOST_AT_ONCE, fmean(waits) / TARGET_S)
    needed = math.ceil(num_requests / max(1.0, fmean(rooms) if rooms else 1.0))
    if factor > 1.0:
        return max(num_replicas + 1, math.ceil(num_replicas * factor), needed)
    return max(needed, math.ceil(num_replicas * factor))


def _values(metrics: Mapping[str, Mapping[Any, float]], name: str) -> Iterable[float]:
    return metrics.get(name, {}).values()
