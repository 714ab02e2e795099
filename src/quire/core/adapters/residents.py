"""`Residents`: the adapters in memory, and the requests that use them. Loads nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field

from quire.adapters.config import AdapterLimits


@dataclass(slots=True)
class Resident:
    """An adapter in memory."""

    digest: str
    num_bytes: int
    users: set[str] = field(default_factory=set)
    """Requests that use it."""


class Residents:
    """Adapters by digest, in order of their last use. An adapter in use is never dropped."""

    def __init__(self, limits: AdapterLimits, drop: Callable[[str], None]) -> None:
        """`drop`: gives back the memory of an adapter."""
        self._limits = limits
        self._drop = drop
        self._by_digest: dict[str, Resident] = {}
        self._of_request: dict[str, Resident] = {}
        self.kept: set[str] = set()
        """Digests that are not dropped to make room."""

    def __contains__(self, digest: str) -> bool:
        return digest in self._by_digest

    @property
    def num_bytes(self) -> int:
        """Bytes of all of them."""
        return sum(one.num_bytes for one in self._by_digest.values())

    @property
    def digests(self) -> list[str]:
        """All digests, the one that was not used for the longest time first."""
        return [*self._by_digest]

    def add(self, digest: str, num_bytes: int) -> None:
        """Adds an adapter that was loaded, unless it is there already."""
        self._by_digest.setdefault(digest, Resident(digest, num_bytes))

    def make_room(self) -> bool:
        """Drops adapters until one of the largest size fits. Returns False if those in use leave no
        room for it."""
        most = self._limits.memory_bytes - self._limits.adapter_bytes
        for digest in self.digests:
            if self.num_bytes <= most:
                return True
            if digest not in self.kept:
                self.drop(digest)
        return self.num_bytes <= most

    def use(self, digest: str, request_id: str) -> None:
        """Notes that a request uses the adapter until `release`."""
        found = self._by_digest[digest] = self._by_digest.pop(digest)
        found.users.add(request_id)
        self._of_request[request_id] = found

    def release(self, request_id: str) -> str | None:
        """Notes that a request has ended. Returns the digest of its adapter, if it had one."""
        found = self._of_request.pop(request_id, None)
        if found is None:
            return None
        found.users.discard(request_id)
        return found.digest

    def ended(self, unfinished: Container[str]) -> list[str]:
        """Requests that use an adapter and are not among the unfinished ones."""
        return [name for name in self._of_request if name not in unfinished]

    def drop(self, digest: str) -> bool:
        """Drops an adapter that no request uses. Returns whether it is gone."""
        found = self._by_digest.get(digest)
        if found is not None and not found.users:
            del self._by_digest[digest]
            self.kept.discard(digest)
            self._drop(digest)
        return digest not in self._by_digest
