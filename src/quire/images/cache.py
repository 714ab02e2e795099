"""`PictureCache`: what was computed of pictures, bounded in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

Kept = TypeVar("Kept")


class PictureCache(Generic[Kept]):
    """Values of pictures by tenant and digest. The least recently used are dropped first; callers
    keep what they have taken. Any thread may call."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.num_queries = 0
        self.num_hits = 0
        """The last two count since the engine's start."""
        self._kept: OrderedDict[tuple[str, bytes], tuple[Kept, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, tenant: str, digest: bytes) -> Kept | None:
        """The value of a picture, or None. Counts the query."""
        with self._lock:
            self.num_queries += 1
            found = self._kept.get((tenant, digest))
            if found is None:
                return None
            self.num_hits += 1
            self._kept.move_to_end((tenant, digest))
            return found[0]

    def put(self, tenant: str, digest: bytes, value: Kept, num_bytes: int) -> None:
        """Keeps the value of a picture, unless it is larger than the cache."""
        with self._lock:
            if num_bytes > self.max_bytes or (tenant, digest) in self._kept:
                return
            self._kept[tenant, digest] = value, num_bytes
            self.num_bytes += num_bytes
            while self.num_bytes > self.max_bytes:
                _, (_, dropped) = self._kept.popitem(last=False)
                self.num_bytes -= dropped

    def drop(self, tenant: str, digest: bytes) -> None:
        """Drops the value of a picture, if it is kept."""
        with self._lock:
            _, num_bytes = self._kept.pop((tenant, digest), (None, 0))
            self.num_bytes -= num_bytes

    def clear(self) -> None:
        """Drops everything."""
        with self._lock:
            self._kept.clear()
            self.num_bytes = 0
