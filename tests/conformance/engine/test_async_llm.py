"""`AsyncLLM` over the fake core, in both hosts: streams, cancelling, pausing, dying, ending."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from polling import soon

from quire.errors import (
    CapacityError,
    ConfigError,
    EngineDeadError,
    EngineGenerateError,
    RequestError,
)
from quire.frontend.observers.user_stats import StatLoggerBase
from quire.frontend.online.async_llm import AsyncLLM, AsyncLLMEngine
from quire.outputs import RequestOutput
from quire.params import RequestOutputKind, SamplingParams

from .conftest import make_process_client, make_thread_client

MakeEngine = Callable[..., AsyncLLM]


@pytest.fixture(params=["thread", "process"])
def make_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeEngine]:
    from fake_engine import fake_config
    from tiny_model import write_tiny_model

    engines: list[AsyncLLM] = []
    tokenizer = write_tiny_model(tmp_path / "tiny")
    make_client = make_thread_client if request.param == "thread" else make_process_client

    def make(stat_loggers: Sequence[Any] = (), **options: Any) -> AsyncLLM:
        config = fake_config(tokenizer=tokenizer, **options)
        engine = AsyncLLM(config, client=make_client(config), stat_loggers=stat_loggers)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.shutdown()


def params(max_tokens: int = 4, **options: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **options)


async def collect(engine: AsyncLLM, prompt: Any, given: SamplingParams, name: str = "r") -> Any:
    return [output async for output in engine.generate(prompt, given, name)]


async def test_metrics_have_the_wait_of_a_request_that_would_arrive_now(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()

    monkeypatch.setattr(engine.requests, "expected_wait_s", lambda: 1.5)
    await engine.refresh_metrics()
    assert engine.metrics.series.expected_wait_seconds.value == 1.5


async def test_the_three_kinds_of_outputs(make_engine: MakeEngine) -> None:
    engine = make_engine()

    assert AsyncLLMEngine is AsyncLLM
    final = await collect(engine, "A", params(output_kind=RequestOutputKind.FINAL_ONLY))
    assert [output.outputs[0].text for output in final] == ["BCDE"]
    deltas = await collect(engine, "A", params(output_kind=RequestOutputKind.DELTA))
    assert "".join(output.outputs[0].text for output in deltas) == "BCDE"
    tokens = [token for output in deltas for token in output.outputs[0].token_ids]
    assert tokens == [33, 34, 35, 36]
    growing = await collect(engine, "A", params())
    texts = [output.outputs[0].text for output in growing]
    assert texts[-1] == "BCDE"
    assert all(texts[-1].startswith(text) for text in texts)
    for outputs in (final, deltas, growing):
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        assert {output.request_id for output in outputs} == {"r"}


async def test_a_slow_reader_gets_everything_merged(make_engine: MakeEngine) -> None:
    engine = make_engine()

    given = params(50, output_kind=RequestOutputKind.DELTA, n=2, temperature=1.0)
    texts = {0: "", 1: ""}
    num_outputs = 0
    async for output in engine.generate("A", given, "slow"):
        await asyncio.sleep(0.03)
        num_outputs += 1
        for one in output.outputs:
            texts[one.index] += one.text
    assert num_outputs < 50
    assert len(texts[0]) == 50
    assert texts[0] == texts[1]


@pytest.mark.parametrize("way", ["close", "cancel", "abort", "break"])
async def test_leaving_frees_the_request_before_the_next_step(
    make_engine: MakeEngine, way: str
) -> None:
    engine = make_engine()

    given = params(400, output_kind=RequestOutputKind.DELTA)
    generator = engine.generate("A", given, "leaver")
    await generator.__anext__()
    if way == "close":
        await generator.aclose()
    elif way == "cancel":
        is_cancelled = False
        while not is_cancelled:  # an output that is there already is taken at once
            task = asyncio.create_task(generator.__anext__())
            await asyncio.sleep(0)
            is_cancelled = task.cancel()
        with contextlib.suppress(asyncio.CancelledError, RequestError):
            await task
    elif way == "abort":
        await engine.abort("leaver")
        last: RequestOutput | None = None
        async for output in generator:
            last = output
        assert last is not None
        assert last.outputs[0].finish_reason == "abort"
    else:
        async for _ in generator:
            break
        await generator.aclose()
    assert (await engine.call("block_map"))["used"] == 0
    assert engine.metrics.num_in_flight == 0
    assert engine.metrics.series.request_success.of("abort").value == 1


async def test_a_system_clock_that_is_set_changes_no_duration(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()

    real, offset = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + offset)
    outputs = []
    async for output in engine.generate("A", params(20), "clock"):
        outputs.append(output)
        offset = -offset - 3600.0
    stats = outputs[-1].metrics
    assert stats is not None
    times = [
        stats.arrival_time, stats.scheduled_ts, stats.first_token_ts, stats.last_token_ts,
    ]  # fmt: skip
    assert times == sorted(times)
    assert times[-1] - times[0] < 60
    assert abs(times[0] - real()) < 600


async def test_equal_ids_are_different_requests(make_engine: MakeEngine) -> None:
    engine = make_engine()

    first = engine.generate("A", params(100), "same")
    await first.__anext__()
    second = asyncio.create_task(collect(engine, "K", params(3), "same"))
    await asyncio.sleep(0.01)
    await first.aclose()
    assert (await second)[-1].outputs[0].text == "LMN"


async def test_bad_requests_raise_and_harm_nobody(make_engine: MakeEngine) -> None:
    from fake_core import REFUSE

    engine = make_engine()

    with pytest.raises(RequestError):
        await collect(engine, "", params())
    with pytest.raises(EngineGenerateError, match="refused"):
        await collect(engine, [REFUSE], params())
    assert (await collect(engine, "A", params(1)))[-1].outputs[0].text == "B"
    await engine.check_health()


async def test_a_full_queue_refuses_and_empties(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_seqs=1, max_num_queued_reqs=1, max_num_queued_tokens=10)

    streams = [engine.generate("A", params(300), f"r{i}") for i in range(2)]
    tasks = [asyncio.create_task(stream.__anext__()) for stream in streams]
    await soon(lambda: engine.metrics.num_in_flight == 2)
    with pytest.raises(CapacityError, match="max_num_queued_reqs 1"):
        await collect(engine, "A", params())
    for stream, task in zip(streams, tasks, strict=True):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await stream.aclose()
    assert (await collect(engine, "A", params(1)))[-1].finished
    running = engine.generate("A", params(300), "a")
    await running.__anext__()
    waiting = asyncio.create_task(engine.generate("A" * 9, params(), "b").__anext__())
    await soon(lambda: engine.metrics.num_in_flight == 2)
    with pytest.raises(CapacityError):
        await collect(engine, "AA", params())
    waiting.cancel()
    await running.aclose()


async def test_a_pause_holds_new_requests(make_engine: MakeEngine) -> None:
    engine = make_engine()

    running = asyncio.create_task(collect(engine, "A", params(400), "old"))
    await soon(lambda: engine.metrics.num_in_flight)
    await engine.pause_generation(mode="abort")
    assert (await running)[-1].outputs[0].finish_reason == "abort"
    assert await engine.is_paused()
    held = asyncio.create_task(collect(engine, "A", params(1), "new"))
    await asyncio.sleep(0.05)
    assert not held.done()
    await engine.resume_generation()
    assert (await held)[-1].outputs[0].text == "B"
    frozen = asyncio.create_task(collect(engine, "A", params(50), "frozen"))
    await soon(lambda: engine.metrics.num_in_flight)
    await engine.pause_generation(mode="keep")
    await asyncio.sleep(0.05)
    assert not frozen.done()
    await engine.resume_generation()
    assert len((await frozen)[-1].outputs[0].token_ids) == 50


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
async def test_a_request_of_a_pause_can_be_aborted(make_engine: MakeEngine, mode: Any) -> None:
    engine = make_engine()

    await engine.pause_generation(mode=mode)
    held = asyncio.create_task(collect(engine, "A", params(3), "held"))
    other = asyncio.create_task(collect(engine, "A", params(3), "other"))
    await soon(lambda: engine.metrics.num_in_flight == 2)
    await engine.abort("held")
    assert (await held)[-1].outputs[0].finish_reason == "abort"
    await engine.resume_generation()
    assert not await engine.is_paused()
    assert (await other)[-1].outputs[0].text == "BCD"


async def test_a_pause_that_waits_lets_requests_run_to_their_end(make_engine: MakeEngine) -> None:
    engine = make_engine()

    running = asyncio.create_task(collect(engine, "A", params(40), "old"))
    await soon(lambda: engine.metrics.num_in_flight)
    pausing = asyncio.create_task(engine.pause_generation(mode="wait"))
    await asyncio.sleep(0)
    held = asyncio.create_task(collect(engine, "A", params(1), "new"))
    await pausing
    assert len((await running)[-1].outputs[0].token_ids) == 40
    assert not held.done()
    await engine.resume_generation()
    assert (await held)[-1].outputs[0].text == "B"
    with pytest.raises(ConfigError, match="mode must be abort, wait or keep, got 'stop'"):
        await engine.pause_generation(mode="stop")  # type: ignore[arg-type]


async def test_a_request_that_is_added_is_read_from_its_stream(make_engine: MakeEngine) -> None:
    engine = make_engine()

    given = params(2, output_kind=RequestOutputKind.FINAL_ONLY)
    stream = await engine.add_request(
        "mine", [33], given, session_id="s", data_parallel_rank=0, prompt_text="A"
    )
    assert (stream.request_id, stream.get_nowait()) == ("mine", None)
    assert engine.get_num_unfinished_requests() == 1
    output = await stream.get()
    assert (output.prompt, output.outputs[0].text) == ("A", "CD")
    with pytest.raises(StopAsyncIteration):
        await stream.get()
    with pytest.raises(RequestError, match=r"data_parallel_rank 1 is out of range \[0, 1\)"):
        await engine.add_request("r", "A", given, data_parallel_rank=1)
    with pytest.raises(TypeError, match="lora_request must be a LoRARequest or None"):
        await engine.add_request("r", "A", given, lora_request=object())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a LoRARequest, got NoneType"):
        await engine.add_lora(None)  # type: ignore[arg-type]
    assert await engine.get_supported_tasks() == ("generate",)
    assert not await engine.is_tracing_enabled()


async def test_death_reaches_everyone_who_waits(make_engine: MakeEngine) -> None:
    from fake_core import RAISE_IN_STEP

    engine = make_engine()

    told: list[EngineDeadError] = []
    engine.call_when_dead(told.append)
    waiting = [
        asyncio.create_task(collect(engine, "A", params(400), f"r{index}")) for index in range(3)
    ]
    await soon(lambda: engine.metrics.num_in_flight == 3)
    killer = asyncio.create_task(collect(engine, [RAISE_IN_STEP], params()))
    results = await asyncio.wait_for(asyncio.gather(*waiting, killer, return_exceptions=True), 2.0)
    assert all(isinstance(result, EngineDeadError) for result in results)
    assert "on purpose" in str(results[0])
    assert engine.errored
    assert not engine.is_running
    assert "on purpose" in str(engine.dead_error)
    engine.call_when_dead(told.append)
    assert told == [engine.dead_error] * 2
    with pytest.raises(EngineDeadError, match="on purpose"):
        await collect(engine, "A", params())
    with pytest.raises(EngineDeadError, match="on purpose"):
        await engine.check_health()


async def test_draining_waits_and_then_aborts(make_engine: MakeEngine) -> None:
    engine = make_engine()

    short = asyncio.create_task(collect(engine, "A", params(20)))
    await soon(lambda: engine.metrics.num_in_flight)
    assert await engine.drain(5.0)
    assert len((await short)[-1].outputs[0].token_ids) == 20
    long = asyncio.create_task(collect(engine, "A", params(400)))
    await soon(lambda: engine.metrics.num_in_flight)
    assert not await engine.drain(0.05)
    assert (await long)[-1].outputs[0].finish_reason == "abort"


async def test_shutdown_tells_who_still_waits(make_engine: MakeEngine) -> None:
    engine = make_engine()

    waiting = asyncio.create_task(collect(engine, "A", params(400)))
    await soon(lambda: engine.metrics.num_in_flight)
    await asyncio.to_thread(engine.shutdown)
    with pytest.raises(EngineDeadError, match="shut down"):
        await asyncio.wait_for(waiting, 2.0)


def test_shutdown_gives_the_engine_time(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, asked = make_engine(), []
    end = engine._client.shutdown
    monkeypatch.setattr(engine._client, "shutdown", lambda s=None: asked.append(s) or end(s))
    for wrong in (True, -1, "5", float("nan")):
        with pytest.raises(ConfigError, match="timeout must be a number of seconds"):
            engine.shutdown(wrong)  # type: ignore[arg-type]
    engine.shutdown(timeout=2.5)
    assert asked == [2.5]
    assert engine.errored


def test_one_event_loop_after_another(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for _ in range(2):
        outputs = asyncio.run(collect(engine, "A", params(2)))
        assert outputs[-1].outputs[0].text == "BC"


async def test_loggers_of_the_user(make_engine: MakeEngine) -> None:
    records: list[Any] = []
    asked: list[str] = []

    class Logger(StatLoggerBase):
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None: ...

        def record(self, scheduler_stats: Any, iteration_stats: Any, **rest: Any) -> None:
            records.append((scheduler_stats, iteration_stats, rest))

        def log_engine_initialized(self) -> None:
            asked.append("ready")

        def log(self) -> None:
            asked.append("log")

    engine = make_engine(stat_loggers=[Logger])
    async for _ in engine.generate("A", params(4), "r"):
        pass
    await engine.do_log_stats()
    assert asked == ["ready", "log"]
    assert sum(iteration.num_generation_tokens for _, iteration, _ in records) == 4
    assert [one.request_id for _, each, _ in records for one in each.finished_requests] == ["r"]
