"""MemoryAhead: the blocks that come next have memory, and nobody waits for it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from dict_tier import DictTier
from fake_core import FakeCore

from quire.config.records import EngineConfig
from quire.core import loop as loop_module
from quire.core.capabilities import Capabilities
from quire.core.engine_core import EngineCore
from quire.core.kv_transfers import BlockWriter, KVTransfers, MemoryAhead
from quire.core.loop import EngineLoop
from quire.core.messages import AbortRequests, Event, Stop
from quire.kvcache.block_pool import BlockPool
from quire.kvstore.chunks import ChunkShape
from quire.kvstore.store import KVStore

from .test_engine_core import CountingExecutor

BLOCK_BYTES = 1 << 20
NUM_BLOCKS = 40


class Written:
    """Takes what is written in place of a worker."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.works = True

    def __call__(self, block_ids: Sequence[int], data: memoryview) -> bool:
        assert data.nbytes == len(block_ids) * BLOCK_BYTES
        assert not any(data[:: BLOCK_BYTES // 2])
        self.ids += block_ids
        return self.works


MakeAhead = Callable[..., MemoryAhead]


@pytest.fixture
def ahead_of(make_config: Callable[..., EngineConfig]) -> MakeAhead:
    """Of blocks of 16 tokens and 1 MiB."""

    def make(pool: BlockPool, written: Written, max_model_len: int = 160) -> MemoryAhead:
        config = make_config(max_model_len=max_model_len, block_bytes=BLOCK_BYTES)
        return MemoryAhead(config, pool, written)

    return make


def test_the_next_blocks_of_a_request_are_written_to_once(ahead_of: MakeAhead) -> None:
    pool, written = BlockPool(NUM_BLOCKS), Written()
    ahead = ahead_of(pool, written)
    assert ahead.has_idle_work()
    turns = 0
    while ahead.use_idle_time():
        turns += 1
    assert written.ids == list(range(10))
    assert not ahead.has_idle_work()
    assert turns == 3  # 4 MiB each
    blocks = pool.allocate(5)
    assert blocks == written.ids[:5]
    while ahead.use_idle_time():
        pass
    assert written.ids == list(range(15))
    pool.release(blocks)
    assert pool.allocate(5) != list(range(15, 20))  # used ones come first, and need no memory
    assert not ahead.use_idle_time()


def test_free_blocks_that_are_used_again_need_no_more_memory(ahead_of: MakeAhead) -> None:
    pool, written = BlockPool(NUM_BLOCKS, most_cached=2), Written()
    ahead = ahead_of(pool, written)
    blocks = pool.allocate(9)
    for block in blocks[:5]:
        pool.register(block, (0, bytes([block])))
    pool.release(blocks)
    assert pool.num_before_fresh == 4 + 5 - 2
    while ahead.use_idle_time():
        pass
    assert written.ids == [9, 10, 11]  # with those seven, ten blocks have memory
    assert pool.allocate(10)[-3:] == written.ids


def test_of_a_model_with_an_encoder_the_rows_of_a_sound_have_memory(
    make_config: Callable[..., EngineConfig],
) -> None:
    config = make_config(max_model_len=160, block_bytes=BLOCK_BYTES)
    config = replace(config, model=replace(config.model, num_sources=40))
    pool, written = BlockPool(NUM_BLOCKS), Written()
    ahead = MemoryAhead(config, pool, written)
    while ahead.use_idle_time():
        pass
    assert written.ids == [0, 1, 2]


def test_blocks_that_were_handed_out_are_never_written_to(ahead_of: MakeAhead) -> None:
    pool, written = BlockPool(NUM_BLOCKS), Written()
    ahead = ahead_of(pool, written)
    assert ahead.use_idle_time()
    pool.allocate(20)
    while ahead.use_idle_time():
        pass
    assert written.ids == [*range(4), *range(20, 30)]


@pytest.mark.parametrize("max_model_len", [16 * NUM_BLOCKS, 16 * NUM_BLOCKS * 100])
def test_no_block_is_behind_the_end_of_the_pool(ahead_of: MakeAhead, max_model_len: int) -> None:
    pool, written = BlockPool(NUM_BLOCKS), Written()
    ahead = ahead_of(pool, written, max_model_len)
    pool.allocate(37)
    while ahead.use_idle_time():
        pass
    assert written.ids == [37, 38, 39]


def test_at_most_256_mib_are_ahead(ahead_of: MakeAhead) -> None:
    pool, written = BlockPool(1000), Written()
    ahead = ahead_of(pool, written, max_model_len=16_000)
    while ahead.use_idle_time():
        pass
    assert len(written.ids) == 256


def test_memory_that_was_given_back_is_taken_again(ahead_of: MakeAhead) -> None:
    pool, written = BlockPool(NUM_BLOCKS), Written()
    ahead = ahead_of(pool, written)
    while ahead.use_idle_time():
        pass
    ahead.forget()
    while ahead.use_idle_time():
        pass
    assert written.ids == [*range(10), *range(10)]


def test_a_worker_that_fails_is_not_asked_again_and_again(ahead_of: MakeAhead) -> None:
    pool, written = BlockPool(NUM_BLOCKS), Written()
    written.works = False
    assert not ahead_of(pool, written).use_idle_time()


class IdleCore(FakeCore):
    """Has idle work without end. In its third turn somebody asks for something."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.turns = 0
        self.loop: EngineLoop | None = None

    def use_idle_time(self) -> bool:
        self.turns += 1
        if self.turns == 3:
            assert self.loop is not None
            self.loop.inbox.put(Stop())
        assert self.turns < 4, "a command waits, and the loop does something else"
        return True


def test_an_idle_loop_works_ahead_until_a_command_comes(
    make_config: Callable[..., EngineConfig],
) -> None:
    core = IdleCore(make_config())
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    core.loop = EngineLoop(core, events.put)
    core.loop.run()
    assert core.loop.failure is None
    assert core.turns == 3


class RestingCore(FakeCore):
    """Notes how long after the last command it works ahead."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.rests: queue.SimpleQueue[tuple[int, float]] = queue.SimpleQueue()
        self._num_commands, self._asked_at = 0, time.monotonic()

    def abort_requests(self, _: list[str]) -> None:
        self._num_commands, self._asked_at = self._num_commands + 1, time.monotonic()

    def use_idle_time(self) -> bool:
        self.rests.put((self._num_commands, time.monotonic() - self._asked_at))
        return False


def test_a_loop_that_had_a_command_rests_before_it_works_ahead(
    make_config: Callable[..., EngineConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "_IDLE_WAIT_S", 0.05)
    core = RestingCore(make_config())
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    loop = EngineLoop(core, events.put)
    thread = threading.Thread(target=loop.run)
    thread.start()
    for number in range(5):
        num_commands = -1
        while num_commands < number:
            num_commands, rest_s = core.rests.get(timeout=60)
            assert rest_s >= 0.045
        loop.inbox.put(AbortRequests([]))
    loop.inbox.put(Stop())
    thread.join()


def test_an_idle_core_has_the_store_take_its_memory_once(
    make_config: Callable[..., EngineConfig],
) -> None:
    config = make_config(max_model_len=16, max_num_seqs=1)
    core = EngineCore(config, CountingExecutor())
    store = KVStore(ChunkShape(2, 1000), [DictTier()])
    prepared: list[KVStore] = []
    store.prepare = lambda: prepared.append(store)  # type: ignore[method-assign]
    core._capabilities = Capabilities(
        [MemoryAhead(config, core.scheduler.kv.pool, BlockWriter(core.executor)),
         KVTransfers(core.scheduler, store)], core.scheduler,
    )  # fmt: skip
    assert core.has_idle_work()
    while core.use_idle_time():
        pass
    assert not core.has_idle_work()
    assert prepared == [store]
    core.shutdown()
