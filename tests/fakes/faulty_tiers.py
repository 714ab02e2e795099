"""Tiers around another one that are slow, that fail, that change bytes, that are full."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence

from quire.kvstore.chunks import ChunkKey
from quire.kvstore.tiers.base import Buffer, Tier, TierError, TierUsage


class AroundTier(Tier):
    """Passes everything on. Counts calls by the method's name."""

    def __init__(self, inner: Tier, *, is_local: bool | None = None) -> None:
        self.inner = inner
        self.name = inner.name
        self.is_local = inner.is_local if is_local is None else is_local
        self.calls: dict[str, int] = {}
        self._lock = threading.Lock()

    def before(self, method: str) -> None:
        """Called first by all but `usage` and `close`."""
        with self._lock:
            self.calls[method] = self.calls.get(method, 0) + 1

    def contains(self, keys: Sequence[ChunkKey]) -> list[bool]:
        self.before("contains")
        return self.inner.contains(keys)

    def read(self, key: ChunkKey, max_bytes: int) -> Buffer | None:
        self.before("read")
        return self.inner.read(key, max_bytes)

    def write(self, key: ChunkKey, parts: Sequence[Buffer]) -> None:
        self.before("write")
        self.inner.write(key, parts)

    def delete(self, key: ChunkKey) -> None:
        self.before("delete")
        self.inner.delete(key)

    def usage(self) -> TierUsage:
        return self.inner.usage()

    def close(self) -> None:
        self.inner.close()


class SlowTier(AroundTier):
    """Takes a time for each call of `methods`, and goes on only while `gate` is set."""

    def __init__(
        self,
        inner: Tier,
        delay_s: float = 0.0,
        methods: Sequence[str] = ("contains", "read", "write", "delete"),
        *,
        is_local: bool | None = None,
    ) -> None:
        super().__init__(inner, is_local=is_local)
        self.gate = threading.Event()
        self.gate.set()
        self._delay_s = delay_s
        self._methods = frozenset(methods)

    def before(self, method: str) -> None:
        super().before(method)
        if method in self._methods:
            time.sleep(self._delay_s)
            self.gate.wait()


class FlakyTier(AroundTier):
    """Fails at random, in a share of the calls of `methods`: 1.0 is always."""

    def __init__(
        self,
        inner: Tier,
        share: float,
        methods: Sequence[str] = ("contains", "read", "write", "delete"),
        seed: int = 0,
        *,
        is_local: bool | None = None,
    ) -> None:
        super().__init__(inner, is_local=is_local)
        self.share = share
        self._methods = frozenset(methods)
        self._random = random.Random(seed)

    def before(self, method: str) -> None:
        super().before(method)
        with self._lock:
            fails = method in self._methods and self._random.random() < self.share
        if fails:
            raise TierError(f"{self.name}: connection lost in {method}")


class CorruptTier(AroundTier):
    """Flips one bit, at random, in a share of the chunks that are read."""

    def __init__(
        self, inner: Tier, share: float = 1.0, seed: int = 0, *, is_local: bool | None = None
    ) -> None:
        super().__init__(inner, is_local=is_local)
        self.share = share
        self._random = random.Random(seed)

    def read(self, key: ChunkKey, max_bytes: int) -> Buffer | None:
        chunk = super().read(key, max_bytes)
        with self._lock:
            is_hit = self._random.random() < self.share
            place = self._random.random()
        if chunk is None or not is_hit:
            return chunk
        damaged = bytearray(chunk)
        bit = int(place * 8 * len(damaged))
        damaged[bit // 8] ^= 1 << bit % 8
        return damaged
