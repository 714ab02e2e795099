"""Every tier of the KV store, each empty, with room for `MAX_CHUNKS` chunks at least."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import faulty_tiers
import pytest

from quire.kvstore.tiers.base import Tier
from quire.kvstore.tiers.disk import DiskTier
from quire.kvstore.tiers.memory import MemoryTier

MAX_BYTES = 64 << 20


def _memory(_: pytest.FixtureRequest) -> Tier:
    return MemoryTier(MAX_BYTES)


def _disk(request: pytest.FixtureRequest) -> Tier:
    path: Path = request.getfixturevalue("tmp_path")
    return DiskTier(path / "kv", MAX_BYTES)


def _wrapped(_: pytest.FixtureRequest) -> Tier:
    """What tests of the store put around tiers keeps the contract where it does no harm."""
    inner = faulty_tiers.CorruptTier(MemoryTier(MAX_BYTES), share=0.0)
    return faulty_tiers.SlowTier(faulty_tiers.FlakyTier(inner, share=0.0))


TIERS: dict[str, Callable[[pytest.FixtureRequest], Tier]] = {
    "memory": _memory,
    "disk": _disk,
    "wrapped": _wrapped,
}


@pytest.fixture(params=TIERS)
def tier(request: pytest.FixtureRequest) -> Iterator[Tier]:
    tier = TIERS[request.param](request)
    yield tier
    tier.close()
