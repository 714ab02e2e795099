"""Loading and unloading models: who waits, who goes, who is refused."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_fleet import BUDGET, FakeLoader, make_fleet
from polling import soon

from quire.server.context import ServerContext
from quire.server.fleet.fleet import Fleet
from quire.server.http.problems import HttpError
from quire.server.readiness import state_of
from quire.server.served_model import ServedModel

Started = tuple[Fleet, list[ServedModel], FakeLoader]


@pytest.fixture
def started(tiny_model: Path) -> Callable[..., Any]:
    @asynccontextmanager
    async def started(*sizes: int, **options: Any) -> AsyncIterator[Started]:
        names = {"abcdef"[index]: size for index, size in enumerate(sizes)}
        context, loader = make_fleet(tiny_model, names, **options)
        fleet = context.fleet
        assert fleet is not None
        try:
            yield fleet, context.models, loader
        finally:
            await fleet.close()

    return started


def states(fleet: Fleet) -> list[str]:
    return [member.state for member in fleet.members]


async def refused(work: Awaitable[None], status: int) -> str:
    with pytest.raises(HttpError) as caught:
        await work
    assert caught.value.problem.status == status
    return caught.value.problem.message


async def test_requests_for_a_model_wait_for_one_load(started: Any) -> None:
    async with started(10) as (fleet, models, loader):
        loader.gate = asyncio.Event()
        waiting = [asyncio.ensure_future(fleet.acquire(models[0])) for _ in range(5)]
        await soon(lambda: loader.loads == ["a"])
        assert states(fleet) == ["loading"]
        loader.gate.set()
        await asyncio.gather(*waiting)
        assert (loader.loads, models[0].num_users, states(fleet)) == (["a"], 5, ["loaded"])


async def test_the_least_recently_used_model_makes_room(started: Any) -> None:
    async with started(40, 40, 40) as (fleet, models, loader):
        for index in (0, 1, 0):
            await fleet.acquire(models[index])
            fleet.release(models[index])
        await fleet.acquire(models[2])
        assert loader.unloads == ["b"]
        assert states(fleet) == ["loaded", "unloaded", "loaded"]


async def test_a_model_with_requests_is_waited_for_and_gets_no_new_ones(started: Any) -> None:
    async with started(60, 60) as (fleet, models, loader):
        a, b = models
        await fleet.acquire(a)
        wants_b = asyncio.ensure_future(fleet.acquire(b))
        await soon(lambda: fleet.members[0].is_leaving)
        wants_a = asyncio.ensure_future(fleet.acquire(a))
        await asyncio.sleep(0.1)
        assert not wants_a.done()
        assert not wants_b.done()
        assert loader.unloads == []
        fleet.release(a)
        await wants_b
        assert (loader.unloads, a.num_users) == (["a"], 0)
        fleet.release(b)
        await wants_a
        assert loader.loads == ["a", "b", "a"]


async def test_a_model_that_never_fits_is_refused_with_both_numbers(started: Any) -> None:
    async with started(40, BUDGET + 1) as (fleet, models, loader):
        await fleet.acquire(models[0])
        message = await refused(fleet.acquire(models[1]), 503)
        assert "needs 101 B, and 60 B of 100 B" in message
        assert "`a` with requests 40 B" in message
        fleet.release(models[0])
        assert "100 B of 100 B" in await refused(fleet.acquire(models[1]), 503)
        assert loader.loads == ["a"]
        assert states(fleet) == ["loaded", "unloaded"]


async def test_a_load_that_waits_too_long_is_refused_with_the_busy_models(started: Any) -> None:
    async with started(60, 60, load_timeout_s=0.2) as (fleet, models, _):
        await fleet.acquire(models[0])
        message = await refused(fleet.acquire(models[1]), 503)
        assert "within model_load_timeout 0.2 s" in message or "`a` with requests 60 B" in message
        await asyncio.sleep(0.3)
        assert not fleet.members[0].is_leaving
        await fleet.acquire(models[0])  # it stayed


async def test_the_queue_is_bounded(started: Any) -> None:
    async with started(10, max_waiting=2) as (fleet, models, loader):
        loader.gate = asyncio.Event()
        waiting = [asyncio.ensure_future(fleet.acquire(models[0])) for _ in range(2)]
        await asyncio.sleep(0)
        assert "max_waiting_loads" in await refused(fleet.acquire(models[0]), 503)
        loader.gate.set()
        await asyncio.gather(*waiting)


async def test_a_failed_load_is_reported_and_tried_again(started: Any) -> None:
    async with started(10) as (fleet, models, loader):
        loader.failures["a"] = "config.json is damaged"
        assert "config.json is damaged" in await refused(fleet.acquire(models[0]), 503)
        assert states(fleet) == ["failed"]
        loader.failures.clear()
        await fleet.acquire(models[0])
        assert (states(fleet), fleet.members[0].failure) == (["loaded"], "")


async def test_an_idle_model_is_unloaded_after_its_time(started: Any) -> None:
    async with started(10, 10) as (fleet, models, loader):
        watching = asyncio.ensure_future(fleet.watch())
        for model in models:
            await fleet.acquire(model)
            fleet.keep_alive(model, 0.0)
        fleet.release(models[1])
        await soon(lambda: loader.unloads == ["b"])
        await asyncio.sleep(0.6)
        assert states(fleet) == ["loaded", "unloaded"]
        watching.cancel()


async def test_an_engine_that_dies_is_replaced_by_the_next_request(started: Any) -> None:
    async with started(10, 10) as (fleet, models, loader):
        watching = asyncio.ensure_future(fleet.watch())
        for model in models:
            await fleet.acquire(model)
            fleet.release(model)
        assert models[0].engine is not None
        models[0].engine.shutdown()
        await soon(lambda: states(fleet) == ["failed", "loaded"])
        await fleet.acquire(models[0])
        assert loader.loads == ["a", "b", "a"]
        watching.cancel()


async def test_only_a_model_without_requests_is_unloaded_by_hand(started: Any) -> None:
    async with started(10) as (fleet, models, loader):
        await fleet.acquire(models[0])
        assert "has requests" in await refused(fleet.unload(models[0]), 409)
        fleet.release(models[0])
        await asyncio.gather(fleet.unload(models[0]), fleet.unload(models[0]))
        assert (loader.unloads, states(fleet)) == (["a"], ["unloaded"])


async def test_memory_counts_until_it_is_free_if_the_caller_of_an_unload_goes(started: Any) -> None:
    async with started(60, 60) as (fleet, models, loader):
        await fleet.load(models[0])
        loader.unload_gate = asyncio.Event()
        unloading = asyncio.ensure_future(fleet.unload(models[0]))
        await soon(lambda: loader.unloads == ["a"])
        unloading.cancel()
        await asyncio.gather(unloading, return_exceptions=True)
        loading = asyncio.ensure_future(fleet.load(models[1]))
        await asyncio.sleep(0.1)
        assert (states(fleet), loader.loads) == (["unloading", "loading"], ["a"])
        loader.unload_gate.set()
        await loading
        assert states(fleet) == ["unloaded", "loaded"]


async def test_all_models_are_unloaded_at_once_when_the_server_ends(started: Any) -> None:
    async with started(30, 30, 30) as (fleet, models, loader):
        for model in models:
            await fleet.load(model)
        loader.unload_gate = asyncio.Event()
        closing = asyncio.ensure_future(fleet.close())
        await soon(lambda: sorted(loader.unloads) == ["a", "b", "c"])
        loader.unload_gate.set()
        await closing
        assert states(fleet) == ["unloaded"] * 3


async def test_requests_that_wait_for_a_load_are_refused_when_the_server_ends(started: Any) -> None:
    async with started(60, 60) as (fleet, models, loader):
        loader.gate = asyncio.Event()
        waiting = [asyncio.ensure_future(fleet.acquire(models[index])) for index in (0, 0, 1)]
        await soon(lambda: loader.loads == ["a"])
        fleet.end_loads()
        for one in waiting:
            assert "shutting down" in await refused(one, 503)
        assert "shutting down" in await refused(fleet.acquire(models[1]), 503)
        assert [model.num_users for model in models] == [0, 0]


async def test_random_traffic_keeps_the_invariants(started: Any) -> None:
    rng, sizes = random.Random(11), (30, 45, 60, 25, 90)

    async with started(*sizes, max_waiting=100) as (fleet, models, _):
        served = [0] * len(models)

        def check() -> None:
            held = [one.num_bytes for one in fleet.members if one.state in ("loaded", "unloading")]
            assert sum(held) <= BUDGET

        async def client(index: int) -> None:
            for _ in range(4):
                await fleet.acquire(models[index])
                check()
                assert models[index].engine is not None
                await asyncio.sleep(rng.random() * 0.004)
                assert models[index].engine is not None
                check()
                fleet.release(models[index])
                served[index] += 1

        watching = asyncio.ensure_future(fleet.watch())
        await asyncio.gather(*(client(rng.randrange(len(models))) for _ in range(20)))
        watching.cancel()
        assert sum(served) == 80
        assert all(model.num_users == 0 for model in models)


async def test_the_server_is_ready_without_a_loaded_model(tiny_model: Path) -> None:
    context: ServerContext = make_fleet(tiny_model, {"a": 10})[0]
    assert state_of(context)[0] == "ready"
    context.is_started = False
    assert state_of(context)[0] == "loading"
    assert context.fleet is not None
    await context.fleet.close()
