"""Estimates of the time to load K/V and of the time to compute it, from recent measurements."""

from __future__ import annotations

import threading
from collections import Counter

from quire.kvstore.tiers.base import Tier

_WEIGHT = 0.2
"""Weight of the newest observation in a mean."""
_FIRST_BYTES_PER_S = 1e9
"""Assumed speed of a tier before its first read. The assumption is optimistic because a tier that
is assumed to be slow is never tried; a slow load ends at its deadline."""
_DOUBT = 0.95
"""Factor applied to the estimate each time a tier is skipped because of it."""


class _Mean:
    """Exponential moving average."""

    __slots__ = ("value",)

    def __init__(self, value: float | None = None) -> None:
        self.value = value

    def add(self, number: float) -> None:
        self.value = number if self.value is None else self.value + _WEIGHT * (number - self.value)


class ReadCosts:
    """Recent seconds per byte of one reading thread of a tier, measured while other threads read
    too."""

    def __init__(self) -> None:
        self._per_byte_s = _Mean(1 / _FIRST_BYTES_PER_S)

    def observe(self, num_bytes: int, duration_s: float) -> None:
        """Record that a chunk of `num_bytes` was read and verified."""
        if num_bytes:
            self._per_byte_s.add(duration_s / num_bytes)

    def seconds(self, num_bytes: int) -> float:
        """Expected time to read `num_bytes`."""
        return num_bytes * (self._per_byte_s.value or 0.0)

    def left_alone(self) -> None:
        """Record that nothing was read because it would have taken too long. Each call lowers the
        estimate, so that a tier that was slow once is tried again later."""
        self._per_byte_s.value = (self._per_byte_s.value or 0.0) * _DOUBT


class ComputeCosts:
    """Seconds per token to compute a prompt; None before the first measurement."""

    _FEWEST = 16
    """Steps with fewer tokens are ignored: they do not show the speed of prompts."""

    def __init__(self) -> None:
        self._per_token_s = _Mean()

    def observe(self, num_tokens: int, duration_s: float) -> None:
        """Record a step that computed `num_tokens`."""
        if num_tokens >= self._FEWEST:
            self._per_token_s.add(duration_s / num_tokens)

    def seconds(self, num_tokens: int) -> float | None:
        """Expected time to compute `num_tokens`."""
        per_token_s = self._per_token_s.value
        return None if per_token_s is None else num_tokens * per_token_s


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
