"""One suite over every host of the engine loop: what `EngineCoreClient` promises."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from quire.core.client import EngineCoreClient
from quire.errors import ConfigError, EngineDeadError, EngineGenerateError

from .conftest import MakeClient, Recorder, make_config, make_request


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


async def test_outputs_come_in_order_and_end(make_client: MakeClient) -> None:
    client, recorder = make_client(), Recorder()
    client.attach(asyncio.get_running_loop(), recorder.listener())
    client.add_request(make_request("a", [7], max_tokens=5))
    client.add_request(make_request("b", [100, 40], max_tokens=3))
    await recorder.until(lambda: recorder.end_of("a") and recorder.end_of("b"))
    assert recorder.tokens_of("a") == [8, 9, 10, 11, 12]
    assert recorder.tokens_of("b") == [41, 42, 43]
    end = recorder.end_of("a")
    assert end is not None
    assert end.finish_reason == "length"


async def test_abort_takes_effect_within_one_step(make_client: MakeClient) -> None:
    client, recorder = make_client(), Recorder()
    client.attach(asyncio.get_running_loop(), recorder.listener())
    client.add_request(make_request("a", [7], max_tokens=100_000))
    await recorder.until(lambda: recorder.tokens_of("a"))
    client.abort_requests(["a", "unknown"])
    # A reply comes after the abort was obeyed: whatever was in flight has arrived by then.
    await client.call("block_map")
    seen = len(recorder.tokens_of("a"))
    client.add_request(make_request("b", [7], max_tokens=3))
    await recorder.until(lambda: recorder.end_of("b"))
    assert len(recorder.tokens_of("a")) == seen


async def test_a_refused_request_ends_alone(make_client: MakeClient) -> None:
    from fake_core import REFUSE

    client, recorder = make_client(), Recorder()
    client.attach(asyncio.get_running_loop(), recorder.listener())
    client.add_request(make_request("bad", [REFUSE]))
    client.add_request(make_request("good", [1], max_tokens=2))
    await recorder.until(lambda: recorder.end_of("bad") and recorder.end_of("good"))
    end = recorder.end_of("bad")
    assert end is not None
    assert (end.finish_reason, end.error) == ("error", "this prompt is refused")
    assert recorder.tokens_of("good") == [2, 3]
    assert client.health().state == "alive"


async def test_calls_answer_between_steps(make_client: MakeClient) -> None:
    client, recorder = make_client(), Recorder()
    client.attach(asyncio.get_running_loop(), recorder.listener())
    assert await client.call("reset_prefix_cache") is True
    client.add_request(make_request("a", [7], max_tokens=100_000))
    await recorder.until(lambda: recorder.tokens_of("a"))
    assert await client.call("reset_prefix_cache") is False
    assert (await client.call("block_map"))["map"] == "u1f99"


async def test_a_call_takes_arguments(make_client: MakeClient) -> None:
    client, recorder = make_client(), Recorder()
    client.attach(asyncio.get_running_loop(), recorder.listener())
    assert await client.call("echo", 1, ["a", None], b=2.5) == [[1, ["a", None]], {"b": 2.5}]


async def test_a_command_that_fails_ends_nothing_else(make_client: MakeClient) -> None:
    client, recorder = make_client(), Recorder()
    client.attach(asyncio.get_running_loop(), recorder.listener())
    for command, message in (("fail", "ValueError: .* on purpose"), ("never", "'never'")):
        with pytest.raises(EngineGenerateError, match=message):
            await client.call(command)
    with pytest.raises(ConfigError, match="this command cannot be obeyed"):
        await client.call("refuse")
    assert await client.call("reset_prefix_cache") is True
    assert client.health().state == "alive"


async def test_a_call_that_finds_the_workers_dead_ends_the_engine(make_client: MakeClient) -> None:
    client, recorder = make_client(), Recorder()
    client.attach(asyncio.get_running_loop(), recorder.listener())
    with pytest.raises(EngineDeadError, match="rank 1 was killed on purpose"):
        await client.call("lose_workers")
    await recorder.until(lambda: recorder.deaths)
    assert client.health().state == "dead"


async def test_pause_freezes_and_resume_goes_on(make_client: MakeClient) -> None:
    client, recorder = make_client(), Recorder()
    client.attach(asyncio.get_running_loop(), recorder.listener())
    client.add_request(make_request("a", [7], max_tokens=200))
    await recorder.until(lambda: recorder.tokens_of("a"))
    await client.call("pause", "keep")
    frozen = len(recorder.tokens_of("a"))
    await asyncio.sleep(0.1)
    assert len(recorder.tokens_of("a")) == frozen
    await client.call("resume")
    await recorder.until(lambda: recorder.end_of("a"))
    assert len(recorder.tokens_of("a")) == 200


async def test_a_failing_step_is_told(make_client: MakeClient) -> None:
    from fake_core import RAISE_IN_STEP

    client, recorder = make_client(), Recorder()
    client.attach(asyncio.get_running_loop(), recorder.listener())
    client.add_request(make_request("a", [7], max_tokens=100_000))
    await recorder.until(lambda: recorder.tokens_of("a"))
    client.add_request(make_request("bad", [RAISE_IN_STEP]))
    await recorder.until(lambda: recorder.deaths)
    assert "RuntimeError: the step failed on purpose" in str(recorder.deaths[0])
    assert client.health().state == "dead"
    with pytest.raises(EngineDeadError, match="on purpose"):
        client.add_request(make_request("late", [1]))
    with pytest.raises(EngineDeadError, match="on purpose"):
        await client.call("block_map")
    assert len(recorder.deaths) == 1


def test_a_death_before_anyone_listens_is_told_once(make_client: MakeClient) -> None:
    from fake_core import RAISE_IN_STEP

    client = make_client()
    client.add_request(make_request("bad", [RAISE_IN_STEP]))
    end = time.monotonic() + 60
    while client.health().state != "dead" and time.monotonic() < end:
        time.sleep(0.01)

    async def deaths(client: EngineCoreClient) -> list[EngineDeadError]:
        recorder = Recorder()
        for _ in range(2):
            client.attach(asyncio.get_running_loop(), recorder.listener())
            await asyncio.sleep(0.05)
        return recorder.deaths

    [death] = run(deaths(client))
    assert "the step failed on purpose" in str(death)
    shut_down = make_client()
    shut_down.shutdown()
    assert not run(deaths(shut_down))


async def test_a_stuck_step_is_told(make_client: MakeClient) -> None:
    from fake_core import HANG

    client, recorder = make_client(), Recorder()
    client.attach(asyncio.get_running_loop(), recorder.listener())
    client.add_request(make_request("a", [7], max_tokens=100_000))
    await recorder.until(lambda: recorder.tokens_of("a"))
    client.add_request(make_request("bad", [HANG]))
    await recorder.until(lambda: recorder.deaths)
    assert "a step is stuck" in str(recorder.deaths[0])
    assert client.health().state == "dead"


@pytest.mark.sweep(1)
async def test_a_long_step_is_no_death(make_client: MakeClient) -> None:
    from fake_core import TOIL

    client, recorder = make_client(), Recorder()
    client.attach(asyncio.get_running_loop(), recorder.listener())
    client.add_request(make_request("a", [TOIL], max_tokens=1))
    begin = time.monotonic()
    while recorder.end_of("a") is None:
        assert client.health().state == "alive"
        await asyncio.sleep(0.02)
    assert time.monotonic() - begin > 2.4
    assert not recorder.deaths


async def test_a_step_longer_than_its_limit_is(make_client: MakeClient) -> None:
    from fake_core import TOIL

    client, recorder = make_client(step_timeout_s=0.5), Recorder()
    client.attach(asyncio.get_running_loop(), recorder.listener())
    client.add_request(make_request("a", [TOIL], max_tokens=1))
    await recorder.until(lambda: recorder.deaths)
    assert "longer than step_timeout 0.5 s" in str(recorder.deaths[0])


def test_an_idle_engine_stays_alive(make_client: MakeClient) -> None:
    client = make_client()
    end = time.monotonic() + 2.2
    while time.monotonic() < end:
        assert client.health().state == "alive"
        time.sleep(0.05)


def test_what_prevents_the_start_is_raised(make_client: MakeClient) -> None:
    with pytest.raises(ConfigError, match="the model is broken; try another"):
        make_client(make_config(model="broken"))


def test_shutdown_leaves_no_thread_and_may_be_repeated(make_client: MakeClient) -> None:
    before = set(threading.enumerate())
    client = make_client()
    client.shutdown()
    client.shutdown()
    assert set(threading.enumerate()) <= before
    assert client.health().state == "dead"


def test_a_second_event_loop_may_take_over(make_client: MakeClient) -> None:
    client = make_client()

    async def scenario(request_id: str) -> list[int]:
        recorder = Recorder()
        client.attach(asyncio.get_running_loop(), recorder.listener())
        client.add_request(make_request(request_id, [7], max_tokens=2))
        await recorder.until(lambda: recorder.end_of(request_id))
        return recorder.tokens_of(request_id)

    assert run(scenario("a")) == [8, 9]
    assert run(scenario("b")) == [8, 9]


def test_a_copy_in_a_forked_child_is_dead(make_client: MakeClient) -> None:
    """It has neither the threads nor the sockets, so whoever called it would wait for ever."""
    client = make_client()
    pid = os.fork()
    if not pid:
        code = 1
        with suppress(BaseException):
            asyncio.run(_call_a_copy(client))
            client.shutdown()
            code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    async def scenario() -> None:
        client.attach(asyncio.get_running_loop(), Recorder().listener())
        await client.call("block_map")

    run(scenario())
    assert client.health().state == "alive"


async def _call_a_copy(client: EngineCoreClient) -> None:
    assert client.health().state == "dead"
    client.attach(asyncio.get_running_loop(), Recorder().listener())
    with pytest.raises(EngineDeadError, match="this process was forked from that one"):
        await asyncio.wait_for(client.call("block_map"), 10)
