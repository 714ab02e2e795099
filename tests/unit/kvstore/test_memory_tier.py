"""MemoryTier: its bounds. What all tiers do is in tests/conformance/kv_tiers."""

from __future__ import annotations

import time

import pytest

from quire.kvstore.chunks import ChunkKey
from quire.kvstore.tiers.base import TierError, TierUsage
from quire.kvstore.tiers.memory import MemoryTier


def key_of(number: int, folder: int = 0) -> ChunkKey:
    return ChunkKey(bytes([folder]) * 32, number.to_bytes(32, "big"), 0)


def held(tier: MemoryTier, count: int) -> list[int]:
    """Which are there. Reading does not change the order of use."""
    return [number for number in range(count) if tier.read(key_of(number), 100) is not None]


def test_the_bound_holds_and_leaves_go_before_their_parents() -> None:
    tier = MemoryTier(100)
    for number in range(10):
        tier.write(key_of(number), [bytes(10)])
    tier.contains([key_of(number) for number in range(3)])
    for number in range(10, 17):
        tier.write(key_of(number), [bytes(10)])
        assert tier.usage() == TierUsage(10, 100, 100)
    assert held(tier, 17) == [0, 1, 2, *range(10, 17)]


def test_of_a_chain_the_last_one_goes_first() -> None:
    tier = MemoryTier(30)
    for number in range(3):
        tier.write(key_of(number), [bytes(10)])
    tier.contains([key_of(number) for number in range(3)])
    tier.write(key_of(3), [bytes(10)])
    assert held(tier, 4) == [0, 1, 3]


def test_what_can_never_fit_is_an_error_and_drops_nothing() -> None:
    tier = MemoryTier(30)
    tier.write(key_of(0), [bytes(10)])
    with pytest.raises(TierError, match="not enough room for 31 bytes"):
        tier.write(key_of(1), [bytes(31)])
    assert held(tier, 2) == [0]


def test_pins_and_folders() -> None:
    tier = MemoryTier(100, folder_bytes=30)
    tier.pin(key_of(0))
    for number in range(6):
        tier.write(key_of(number), [bytes(10)])
    tier.write(key_of(0, folder=1), [bytes(10)])
    assert held(tier, 6) == [0, 4, 5]
    assert tier.bytes_by_folder() == {"00" * 16: 30, "01" * 16: 10}
    tier.unpin(key_of(0))
    for number in range(6, 9):
        tier.write(key_of(number), [bytes(10)])
    assert held(tier, 9) == [6, 7, 8]


def test_what_is_cleared_is_not_pinned_any_more() -> None:
    tier = MemoryTier(30)
    for folder in range(2):
        tier.write(key_of(0, folder=folder), [bytes(10)])
        tier.pin(key_of(0, folder=folder))
    tier.clear(key_of(0, folder=1).folder)
    for number in range(9):
        tier.write(key_of(number, folder=1), [bytes(10)])
    assert tier.contains([key_of(0), key_of(0, folder=1)]) == [True, False]


def test_what_nobody_used_for_long_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now)
    tier = MemoryTier(100, ttl_s=50)
    tier.write(key_of(0), [bytes(10)])
    tier.write(key_of(1), [bytes(10)])
    now += int(40e9)
    assert tier.contains([key_of(1)]) == [True]
    now += int(20e9)
    assert tier.contains([key_of(0), key_of(1)]) == [False, True]
    assert tier.usage().num_bytes == 10
