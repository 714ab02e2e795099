"""Small work is done at once, larger on threads, the largest one at a time, for nobody in vain."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from quire.errors import CapacityError
from quire.server.connection.http_server import IdleMemory, release_free_memory
from quire.server.json_pieces import check_wanted
from quire.server.work_pool import _TURNS_AT_ONCE, INLINE_SIZE, WorkPool
from quire.server.work_threads import LARGE_SIZE

from .conftest import Harness


def thread_name() -> str:
    return threading.current_thread().name


async def test_where_work_is_done_depends_on_its_size() -> None:
    pool, here = WorkPool(), thread_name()
    assert await pool.run(INLINE_SIZE, thread_name) == here
    assert (await pool.run(INLINE_SIZE + 1, thread_name)).startswith("quire-work")
    assert (await pool.run(LARGE_SIZE + 1, thread_name)).startswith("quire-large-work")
    for size in (1, INLINE_SIZE + 1, LARGE_SIZE + 1):
        with pytest.raises(ValueError, match="invalid literal"):
            await pool.run(size, int, "x")
    pool.close()


async def test_a_pool_apart_does_no_work_on_the_event_loop() -> None:
    pool = WorkPool()
    own = pool.apart()
    assert await own.run(0, thread_name) == thread_name()
    assert (await own.run(1, thread_name)).startswith("quire-work")
    gate = threading.Event()
    stuck = [asyncio.ensure_future(own.run(1, gate.wait)) for _ in range(20)]
    await asyncio.sleep(0.05)
    assert (await pool.run(INLINE_SIZE + 1, thread_name)).startswith("quire-work")
    gate.set()
    await asyncio.gather(*stuck)
    pool.close()
    with pytest.raises(RuntimeError, match="after shutdown"):
        await own.run(1, thread_name)


def test_a_tokenizer_that_may_be_slow_has_threads_of_its_own(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, names = harness.model.engine.tokenizer, []
    encode_batch = tokenizer.encode_batch

    def noted(*args: Any, **options: Any) -> Any:
        names.append(thread_name())
        return encode_batch(*args, **options)

    monkeypatch.setattr(tokenizer, "encode_batch", noted)
    message = [{"role": "user", "content": "A"}]
    bodies: dict[str, Any] = {
        "/v1/completions": {"prompt": "A", "max_tokens": 1, "bad_words": ["x"]},
        "/v1/chat/completions": {"messages": message, "max_tokens": 1},
        "/v1/messages": {"messages": message, "max_tokens": 1, "model": "tiny"},
        "/tokenize": {"prompt": "A"},
    }
    for path, body in bodies.items():
        for is_quick in (True, False):
            monkeypatch.setitem(vars(tokenizer), "is_quick", is_quick)
            names.clear()
            assert harness.post(path, body).status_code == 200
            assert names
            assert (thread_name() in names) == is_quick, path


async def test_large_work_waits_and_too_much_of_it_is_refused() -> None:
    pool = WorkPool(max_large=2, max_large_waiting=3)
    gate, begun = threading.Event(), list[int]()

    def work() -> bool:
        begun.append(1)
        return gate.wait()

    running = [asyncio.ensure_future(pool.run(LARGE_SIZE + 1, work)) for _ in range(5)]
    await asyncio.sleep(0.05)
    with pytest.raises(CapacityError, match="max_large_requests_waiting 3"):
        await pool.run(LARGE_SIZE + 1, gate.wait)
    assert (await pool.run(LARGE_SIZE, thread_name)).startswith("quire-work")  # not delayed
    assert len(begun) == 2
    gate.set()
    assert await asyncio.gather(*running) == [True] * 5
    assert await pool.run(LARGE_SIZE + 1, gate.wait)  # there is room again
    pool.close()


async def test_work_whose_caller_has_left_is_not_begun_or_ends_soon() -> None:
    begun, ended = threading.Event(), threading.Event()

    def endless() -> None:
        begun.set()
        try:
            while True:
                check_wanted()
                time.sleep(0.001)
        finally:
            ended.set()

    pool, never = WorkPool(), threading.Event()
    first = asyncio.ensure_future(pool.run(LARGE_SIZE + 1, endless))
    second = asyncio.ensure_future(pool.run(LARGE_SIZE + 1, never.set))
    await asyncio.to_thread(begun.wait, 60)
    second.cancel()
    first.cancel()
    assert await asyncio.to_thread(ended.wait, 60)
    assert await pool.run(LARGE_SIZE + 1, thread_name)  # the one large thread is free again
    assert not never.is_set()
    pool.close()


async def test_outside_work_whose_caller_has_left_ends_soon() -> None:
    begun, ended = threading.Semaphore(0), threading.Semaphore(0)

    def endless() -> None:
        begun.release()
        try:
            while True:
                check_wanted()
                time.sleep(0.001)
        finally:
            ended.release()

    pool = WorkPool()
    running = [asyncio.ensure_future(pool.run_outside(9, endless)) for _ in range(4)]
    for _ in running:
        assert await asyncio.to_thread(begun.acquire, timeout=60)
    for one in running:
        one.cancel()
    for _ in running:
        assert await asyncio.to_thread(ended.acquire, timeout=60)
    assert (await pool.run_outside(9, thread_name)).startswith("quire-outside-work")
    pool.close()


async def test_memory_is_given_back_once_for_much_work(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr("quire.server.work_threads.release_free_memory", lambda: given.append(1))
    monkeypatch.setattr("quire.server.work_threads._RELEASE_AFTER_S", 0.2)

    pool = WorkPool()
    for _ in range(20):
        await pool.run(INLINE_SIZE + 1, thread_name)
    await asyncio.sleep(0.3)
    assert not given
    for _ in range(20):
        await pool.run(LARGE_SIZE + 1, thread_name)
    for _ in range(3000):
        await asyncio.sleep(0.02)
        if given:
            break
    assert 1 <= len(given) <= 3
    pool.close()
    release_free_memory()


def test_memory_is_released_once_after_the_server_was_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    now, released = [100.0], []
    monkeypatch.setattr("quire.server.connection.http_server.time.monotonic", lambda: now[0])
    monkeypatch.setattr(
        "quire.server.connection.http_server.release_free_memory", lambda: released.append(now[0])
    )
    memory = IdleMemory()
    for at, num_events, is_idle in [
        (101.0, 1, True),  # too early
        (106.0, 1, False),
        (107.0, 1, True),  # released
        (120.0, 1, True),  # nothing has happened since
        (121.0, 2, True),  # released
    ]:
        now[0] = at
        memory.check(num_events, is_idle)
    assert released == [107.0, 121.0]


async def test_many_who_go_on_take_turns() -> None:
    """Tasks with much small work: few of them go on in one turn of the event loop."""

    pool, count, most = WorkPool(), [0], 0

    async def work() -> None:
        for _ in range(3):
            count[0] += 1
            await pool.turn()

    tasks = [asyncio.create_task(work()) for _ in range(100)]
    await asyncio.sleep(0)  # each has begun
    while not all(task.done() for task in tasks):
        before = count[0]
        await asyncio.sleep(0)
        most = max(most, count[0] - before)
    assert count[0] == 300
    assert most <= 2 * _TURNS_AT_ONCE
    pool.close()
