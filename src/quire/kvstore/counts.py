"""`StoreCounts`: counters of the KV store, for metrics."""

from __future__ import annotations

import threading
from collections import Counter

from quire.kvstore.tiers.base import Tier


class StoreCounts:
    """Sums since the start, by name and by tier or reason. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: Counter[tuple[str, str]] = Counter()

    def add(self, name: str, label: str, number: float = 1) -> None:
        """Add `number` to a sum."""
        with self._lock:
            self._sums[name, label] += number  # type: ignore[assignment]

    def as_dict(self) -> dict[str, dict[str, float]]:
        """The sums: by name, then by tier or reason."""
        with self._lock:
            found = dict(self._sums)
        result: dict[str, dict[str, float]] = {}
        for (name, label), value in sorted(found.items()):
            result.setdefault(name, {})[label] = value
        return result


def usage_of(tiers: list[Tier]) -> list[dict[str, object]]:
    """Return the usage of each tier."""
    found = []
    for tier in tiers:
        usage = tier.usage()
        found.append(
            {
                "tier": tier.name,
                "chunks": usage.num_chunks,
                "bytes": usage.num_bytes,
                "max_bytes": usage.max_bytes,
            }
        )
    return found
