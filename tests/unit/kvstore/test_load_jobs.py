"""Loads: nothing is written to blocks that were given back, and the processor is shared."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from functools import partial

import pytest
from dict_tier import DictTier

from quire.kvstore import readers as readers_module
from quire.kvstore.chunk_file import HEADER_BYTES, encode
from quire.kvstore.chunks import ChunkKey, ChunkShape
from quire.kvstore.jobs import LoadedChunk, LoadJob, LookupJob, StoredChunk
from quire.kvstore.readers import ReadPace
from quire.kvstore.store import NUM_READ_THREADS, KVStore
from quire.kvstore.tiers.base import Buffer

SHAPE = ChunkShape(2, 1000)
KEY = ChunkKey(bytes(32), bytes(32), 0)
WAIT_S = 30.0


def test_a_closed_job_copies_nothing() -> None:
    copied: list[int] = []
    job = LoadJob("a", [StoredChunk(KEY, 2)], [[lambda data: not copied.append(len(data))]], 0.0)  # type: ignore[func-returns-value]
    assert job.copy(0, 0, memoryview(b"abc"))
    job.close()
    job.close()
    assert not job.copy(0, 0, memoryview(b"abc"))
    assert copied == [3]


def test_closing_waits_for_what_is_being_copied() -> None:
    begun, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def copy(_: memoryview) -> bool:
        begun.set()
        assert go_on.wait(WAIT_S)
        order.append("copied")
        return True

    job = LoadJob("a", [StoredChunk(KEY, 2)], [[copy]], 0.0)
    reader = threading.Thread(target=job.copy, args=(0, 0, memoryview(b"")))
    reader.start()
    assert begun.wait(WAIT_S)
    closer = threading.Thread(target=lambda: (job.close(), order.append("closed")))
    closer.start()
    time.sleep(0.05)
    assert order == []
    go_on.set()
    reader.join(WAIT_S)
    closer.join(WAIT_S)
    assert order == ["copied", "closed"]


def can_go(pace: ReadPace, seconds: float = 0.02, kind: str = "copy") -> bool:
    with pace.turn(time.monotonic() + seconds, kind) as may_go:
        return may_go


def work(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


def turn_of(pace: ReadPace, seconds: float, kind: str) -> None:
    with pace.turn(time.monotonic() + WAIT_S, kind) as may_go:
        assert may_go
        work(seconds)


def test_the_pace() -> None:
    pace = ReadPace()
    assert can_go(pace), "at first there is no bound"
    pace.grant(0.01)
    turn_of(pace, 0.03, "read")
    pace.grant(0.01)
    assert not can_go(pace), "too much was taken"
    pace.grant(1.0)
    assert can_go(pace, WAIT_S)
    pace.grant(0.01)
    turn_of(pace, 0.02, "read")
    assert not can_go(pace), "what was left is not saved up"
    waits = threading.Thread(target=can_go, args=(pace, WAIT_S))
    waits.start()
    pace.grant(None)
    waits.join(WAIT_S)
    assert not waits.is_alive()
    with pace.turn(time.monotonic() + WAIT_S, "read"):
        assert can_go(pace), "there is no bound"


def test_turns_at_the_same_time_have_room_in_the_budget() -> None:
    """Also those that wait and have used nothing yet."""
    pace = ReadPace()
    pace.grant(0.05)
    with pace.turn(time.monotonic() + WAIT_S, "read"):
        assert not can_go(pace), "nobody knows what the first one takes"
        work(0.02)
    assert can_go(pace), "it did not take all"
    pace.grant(0.05)
    with ExitStack() as turns:
        for number in range(3):
            may_go = turns.enter_context(pace.turn(time.monotonic() + WAIT_S, "read"))
            assert may_go, f"{number} x 20 ms of 50 are taken"
        assert not can_go(pace)
    pace.grant(0.01)
    assert can_go(pace), "those have used nothing"


class _IntoTier(DictTier):
    """Reads into the memory that it is given, which the next read gets too."""

    def read_into(self, key: ChunkKey, max_bytes: int, into: memoryview) -> Buffer | None:
        data = self.read(key, max_bytes)
        if data is None:
            return None
        into[: len(data)] = data
        return into[: len(data)]


def test_what_comes_from_afar_is_kept_near() -> None:
    """As it was, however many are read before it is written."""
    near, far = DictTier("near"), _IntoTier("far", is_local=False)
    near.delay_s = 0.01
    keys = [ChunkKey(bytes(32), bytes([number]) * 32, 0) for number in range(20)]
    for number, key in enumerate(keys):
        far.write(key, encode(key, SHAPE, bytes([number]) * SHAPE.num_bytes))
    store = KVStore(SHAPE, [near, far])
    copied: dict[int, bytes] = {}

    def copy(number: int, data: memoryview) -> bool:
        copied[number] = bytes(data)
        return True

    copies = [[partial(copy, number)] for number in range(20)]
    job = LoadJob("a", [StoredChunk(key, 2) for key in keys], copies, time.monotonic() + WAIT_S)
    store.load(job)
    for _ in keys:
        assert store.take_news(WAIT_S) is not None
    assert store.flush(WAIT_S)
    assert copied == {number: bytes([number]) * SHAPE.num_bytes for number in range(20)}
    assert near.chunks == far.chunks
    assert store.counts.as_dict()["load_bytes"] == {"far": 20 * SHAPE.num_bytes}
    store.close()


def test_a_lookup_does_not_wait_for_loads() -> None:
    """And a load goes on when there is processor time for it."""
    tier = DictTier(is_local=False)
    tier.write(KEY, encode(KEY, SHAPE, bytes(SHAPE.num_bytes)))
    store = KVStore(SHAPE, [tier])
    store.pace_loads(0.0)
    chunks = [StoredChunk(KEY, 2)] * 8
    copies = [[lambda data: len(data) == SHAPE.num_bytes]] * 8
    load = LoadJob("a", chunks, copies, time.monotonic() + WAIT_S)
    store.load(load)
    store.look_up(LookupJob("b", [[KEY]], [[], []], time.monotonic() + WAIT_S))
    news = store.take_news(WAIT_S)
    assert isinstance(news, LookupJob)
    assert news.found == {KEY}
    assert store.take_news() is None
    store.pace_loads(None)
    for _ in range(8):
        loaded = store.take_news(WAIT_S)
        assert isinstance(loaded, LoadedChunk)
        assert loaded.is_copied
    store.close()


def test_memory_for_a_load_is_taken_before_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the first load takes no more."""
    taken: list[int] = []

    def page_memory(num_bytes: int) -> memoryview:
        taken.append(num_bytes)
        memory = memoryview(bytearray(b"x" * num_bytes))
        memories.append(memory)
        return memory

    memories: list[memoryview] = []
    monkeypatch.setattr(readers_module, "page_memory", page_memory)
    tier = DictTier(is_local=False)
    tier.write(KEY, encode(KEY, SHAPE, bytes(SHAPE.num_bytes)))
    store = KVStore(SHAPE, [tier])
    store.prepare()
    end = time.monotonic() + WAIT_S
    while not memories or any(bytes(memories[-1])):
        assert time.monotonic() < end
        time.sleep(0.001)
    assert 1 <= len(taken) <= NUM_READ_THREADS
    assert {*taken} == {HEADER_BYTES + SHAPE.num_bytes}
    store.close()
