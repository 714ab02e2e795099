"""`EncoderCache`: the rows of encoded pictures, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict


class EncoderCache:
    """Rows of pictures by tenant and digest. The least recently used are dropped first; requests
    keep the bytes that they have taken. Owned by the engine core's thread."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.num_queries = 0
        self.num_hits = 0
        """The last two count since the engine's start."""
        self._rows: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, tenant: str, digest: bytes) -> bytes | None:
        """The rows of a picture, or None. Counts the query."""
        self.num_queries += 1
        found = self._rows.get((tenant, digest))
        if found is not None:
            self.num_hits += 1
            self._rows.move_to_end((tenant, digest))
        return found

    def put(self, tenant: str, digest: bytes, rows: bytes) -> None:
        """Keeps the rows of a picture, unless they are larger than the cache."""
        if len(rows) > self.max_bytes or (tenant, digest) in self._rows:
            return
        self._rows[tenant, digest] = rows
        self.num_bytes += len(rows)
        while self.num_bytes > self.max_bytes:
            _, dropped = self._rows.popitem(last=False)
            self.num_bytes -= len(dropped)

    def clear(self) -> None:
        """Drops everything."""
        self._rows.clear()
        self.num_bytes = 0
