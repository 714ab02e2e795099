"""`RankAdapters`: the adapters that all ranks of a model have loaded, by digest.

Every rank reads the adapter's folder and keeps the rows of its own weights.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from quire.backends.records import LoadedAdapter, NamedAdapter, loaded_adapter
from quire.errors import ConfigError
from quire.executor.rank_processes import RankProcesses


class RankAdapters:
    """Loaded on any thread, one after the other; dropped and looked up by the executor's thread."""

    def __init__(self, ranks: RankProcesses) -> None:
        self._ranks = ranks
        self._loaded: dict[str, NamedAdapter] = {}

    def load(self, path: str, name: str) -> dict[str, Any]:
        """Loads an adapter on all ranks, or on none. Raises what a rank raises, and ConfigError if
        the ranks find different files."""

        def load_one(rank: int) -> dict[str, Any] | Exception:
            try:
                found: dict[str, Any] = self._ranks.call_at_once(rank, "load_adapter", path, name)
            except Exception as error:
                return error
            return found

        numbers = range(len(self._ranks.ranks))
        with ThreadPoolExecutor(len(numbers), "quire-adapters") as threads:
            results = list(threads.map(load_one, numbers))
        loaded = {rank: one for rank, one in enumerate(results) if isinstance(one, dict)}
        digests = {found["digest"] for found in loaded.values()}
        error = next((one for one in results if isinstance(one, Exception)), None)
        if error is None and len(digests) > 1:
            error = ConfigError(f"{path} must have the same adapter on the machines of all ranks")
        if error is not None:
            for rank, found in loaded.items():
                if found["digest"] not in self._loaded:
                    self._ranks.call_at_once(rank, "drop_adapter", found["digest"])
            raise error
        [digest] = digests
        num_bytes = sum(found["num_bytes"] for found in loaded.values())
        self._loaded[digest] = NamedAdapter(digest, num_bytes)
        return {**loaded[0], "num_bytes": num_bytes}

    def drop(self, digest: str) -> None:
        """Drops an adapter, which no request uses, after the steps that were begun."""
        if self._loaded.pop(digest, None) is not None:
            self._ranks.receive(self._ranks.send("drop_adapter", [digest]))

    def get(self, digest: str) -> LoadedAdapter | None:
        """The adapter as steps name it; None for "". Raises IntegrityError if it is not loaded."""
        return loaded_adapter(self._loaded, digest)
