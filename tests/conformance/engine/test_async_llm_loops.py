"""`AsyncLLM` and several event loops: it serves one at a time, and tells the others so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from polling import soon

from quire.errors import ConfigError
from quire.frontend.online.async_llm import AsyncLLM

from .test_async_llm import MakeEngine, collect, make_engine, params

__all__ = ["make_engine"]

WAIT_S = 20
ELSEWHERE = "another loop is using it"


def in_another_loop(work: Callable[[], Any]) -> Any:
    """Runs a coroutine function on a thread and a loop of its own, and returns its value."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(work())).result(WAIT_S)


async def test_calls_from_another_loop_are_refused_while_it_is_used(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine()

    def calls() -> list[Callable[[], Any]]:
        return [
            lambda: collect(engine, "A", params()),
            lambda: engine.abort("r"),
            engine.abort_all,
            engine.reset_prefix_cache,
            lambda: engine.call("block_map"),
            engine.pause_generation,
            engine.resume_generation,
        ]

    running = asyncio.create_task(collect(engine, "A", params(300)))
    await soon(lambda: engine.metrics.num_in_flight)
    for call in calls():
        with pytest.raises(ConfigError, match=ELSEWHERE):
            await asyncio.to_thread(in_another_loop, call)
    assert len((await running)[-1].outputs[0].token_ids) == 300
    outputs = await asyncio.to_thread(in_another_loop, lambda: collect(engine, "A", params(2)))
    assert outputs[-1].outputs[0].text == "BC"


def test_a_request_that_is_admitted_keeps_its_loop_until_it_ends(make_engine: MakeEngine) -> None:
    engine = make_engine()

    def elsewhere() -> Any:
        return in_another_loop(lambda: collect(engine, "A", params(1)))

    async def scenario() -> None:
        request = engine.input_processor.process("r", "A", params(5))
        [stream] = engine.requests.admit([request])
        with pytest.raises(ConfigError, match=ELSEWHERE):
            await asyncio.to_thread(elsewhere)
        stream.close()
        assert (await asyncio.to_thread(elsewhere))[-1].outputs[0].text == "B"

    asyncio.run(scenario())
    assert not engine.requests


def test_many_loops_at_once_get_their_outputs_or_that_error(make_engine: MakeEngine) -> None:
    engine = make_engine()
    results: list[Any] = []

    async def scenario() -> None:
        for _ in range(30):
            call = collect(engine, "A", params(3))
            [result] = await asyncio.gather(asyncio.wait_for(call, WAIT_S), return_exceptions=True)
            results.append(result)
            await asyncio.sleep(0.001)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: asyncio.run(scenario()), range(4), timeout=3 * WAIT_S))
    refused = [result for result in results if isinstance(result, ConfigError)]
    assert all(ELSEWHERE in str(error) for error in refused)
    texts = [result[-1].outputs[0].text for result in results if result not in refused]
    assert set(texts) == {"BCD"}
    assert len(results) == 120
    assert engine.metrics.num_in_flight == 0


def test_a_loop_that_was_closed_in_the_middle_harms_not_the_next(make_engine: MakeEngine) -> None:
    engine = make_engine()
    loop = asyncio.new_event_loop()

    async def begin() -> Any:
        request = engine.input_processor.process("left", "A", params(400))
        [stream] = engine.requests.admit([request])
        engine.requests.begin(stream)
        engine.requests.hand_over(request.core_requests[0])
        waiting = asyncio.ensure_future(stream.__anext__())
        await soon(lambda: engine.metrics.num_in_flight)
        return waiting

    waiting = loop.run_until_complete(begin())
    loop.close()
    outputs = asyncio.run(collect(engine, "A", params(3)))
    assert outputs[-1].outputs[0].text == "BCD"
    assert engine.metrics.num_in_flight == 0
    waiting._log_destroy_pending = False  # it was left alone on purpose


def test_a_pause_outlives_the_loop_that_asked_for_it(make_engine: MakeEngine) -> None:
    engine: AsyncLLM = make_engine()

    async def pause() -> None:
        await engine.pause_generation()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(collect(engine, "A", params()), 0.05)

    async def resume() -> None:
        held = asyncio.create_task(collect(engine, "A", params(1)))
        await asyncio.sleep(0.05)
        assert not held.done()
        await engine.resume_generation()
        assert (await held)[-1].outputs[0].text == "B"

    asyncio.run(pause())
    asyncio.run(resume())


def test_shutting_down_from_a_thread_while_a_loop_adds_requests(make_engine: MakeEngine) -> None:
    engine = make_engine()

    async def scenario() -> int:
        closing = asyncio.ensure_future(asyncio.to_thread(engine.shutdown))
        ended = 0
        while not closing.done():
            tasks = [collect(engine, "A", params(5), f"r{index}") for index in range(8)]
            results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), WAIT_S)
            ended += len(results)
        await closing
        return ended

    assert asyncio.run(scenario()) > 0
