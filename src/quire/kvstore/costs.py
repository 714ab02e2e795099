"""Estimates of the time to load K/V and of the time to compute it, from recent measurements;
`GuardedTier`: a tier whose methods never raise, with its measured read costs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from quire.kvstore.chunk_file import HEADER_BYTES, ChunkError, decode
from quire.kvstore.chunks import ChunkKey, ChunkShape
from quire.kvstore.tiers.base import Buffer, Tier, TierError, TierWatcher
from quire.log import get_logger

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


logger = get_logger(__name__)

_MOST_FAILURES = 3
_FIRST_PAUSE_S = 10.0
_LONGEST_PAUSE_S = 300.0


class Breaker:
    """Circuit breaker. It opens for 10 s after three failures in a row. Each time the first attempt
    after a pause fails too, the next pause is twice as long, up to 5 minutes. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_failures = 0
        self._pause_s = _FIRST_PAUSE_S
        self._closed_from = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the tier must not be used now."""
        return time.monotonic() < self._closed_from

    def succeeded(self) -> None:
        """Record a successful use of the tier."""
        with self._lock:
            self._num_failures = 0
            self._pause_s = _FIRST_PAUSE_S

    def failed(self) -> float | None:
        """Record a failed use. Return the pause in seconds if this failure opens the breaker."""
        with self._lock:
            self._num_failures += 1
            if self._num_failures < _MOST_FAILURES or self.is_open:
                return None
            pause_s = self._pause_s
            self._closed_from = time.monotonic() + pause_s
            self._pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            self._num_failures = _MOST_FAILURES - 1
            return pause_s


class GuardedTier:
    """Wraps a tier. A failure counts as a miss and is recorded. A tier that keeps failing is not
    used for a while. Reads and writes have separate breakers, so that a full disk can still be
    read. Safe for threads."""

    def __init__(self, tier: Tier, counts: StoreCounts, tell: TierWatcher | None = None) -> None:
        """`tell`: receives the names of chunks that the tier stores and drops."""
        self.tier = tier
        self.name = tier.name
        self.costs = ReadCosts()
        self._counts = counts
        self._reads = Breaker()
        self._writes = Breaker()
        self._tell = None if tier.is_local else tell
        if tell is not None:
            tier.watch(tell)

    @property
    def can_read(self) -> bool:
        """Whether reads are allowed now."""
        return not self._reads.is_open

    @property
    def can_write(self) -> bool:
        """Whether writes are allowed now."""
        return not self._writes.is_open

    def contains(self, keys: Sequence[ChunkKey]) -> list[bool]:
        """Whether each chunk is present; all False if the tier fails."""
        return self._look(self.tier.contains, keys)

    def find(self, keys: Sequence[ChunkKey]) -> list[bool]:
        """Whether each chunk is present; also finds chunks that other processes have just written.
        May be slow."""
        return self._look(self.tier.find, keys)

    def _look(
        self, look: Callable[[Sequence[ChunkKey]], list[bool]], keys: Sequence[ChunkKey]
    ) -> list[bool]:
        if not self.can_read:
            return [False] * len(keys)
        try:
            found = look(keys)
        except TierError as error:
            self._failed(self._reads, "lookup", error)
            return [False] * len(keys)
        if not self.tier.is_local:
            self._reads.succeeded()
        return found

    def read(self, key: ChunkKey, shape: ChunkShape, into: memoryview) -> memoryview | None:
        """Return the verified K/V, which may be a part of `into`, a buffer for one chunk. None: the
        chunk is missing or invalid, or the tier fails."""
        if not self.can_read:
            return None
        try:
            found = self.tier.read_into(key, HEADER_BYTES + shape.num_bytes, into)
            if found is None:
                return None
            data = decode(found, key, shape)
        except TierError as error:
            self._failed(self._reads, "read", error)
            return None
        except ChunkError as error:
            self._counts.add("corrupt", self.name)
            logger.warning("KV store, %s: dropped chunk %s: %s", self.name, key.name, error)
            self.delete(key)
            return None
        self._reads.succeeded()
        return data

    def loaded(self, num_bytes: int, seconds: float) -> None:
        """Record that `num_bytes` were read, verified and copied to their destination."""
        self.costs.observe(num_bytes, seconds)
        self._counts.add("load_seconds", self.name, seconds)
        self._counts.add("load_bytes", self.name, num_bytes)

    def write(self, key: ChunkKey, parts: Sequence[Buffer]) -> bool:
        """Write a chunk. Return whether it was stored."""
        if not self.can_write:
            self._counts.add("store_dropped", "tier_failing")
            return False
        try:
            self.tier.write(key, parts)
        except TierError as error:
            self._failed(self._writes, "write", error)
            return False
        self._writes.succeeded()
        self._counts.add("store_bytes", self.name, sum(len(part) for part in parts))
        if self._tell is not None:
            self._tell([key.name], True)
        return True

    def delete(self, key: ChunkKey) -> None:
        """Delete a chunk if the tier works."""
        try:
            self.tier.delete(key)
        except TierError as error:
            self._failed(self._writes, "delete", error)
            return
        if self._tell is not None:
            self._tell([key.name], False)

    def _failed(self, breaker: Breaker, what: str, error: TierError) -> None:
        self._counts.add("errors", self.name)
        pause_s = breaker.failed()
        if pause_s is not None:
            logger.warning(
                "KV store, %s: a %s failed repeatedly: %s; pausing it for %.0f s",
                self.name,
                what,
                error,
                pause_s,
            )
