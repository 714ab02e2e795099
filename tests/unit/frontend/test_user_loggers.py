"""Loggers of the user: what they are told, when, and what becomes of one that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from quire.config.records import EngineConfig
from quire.errors import ConfigError
from quire.frontend.arguments import RequestOptions
from quire.frontend.inputs.input_processor import InputProcessor
from quire.frontend.observers import user_loggers
from quire.frontend.observers.user_loggers import UserLoggers
from quire.frontend.observers.user_stats import (
    AggregateStatLoggerBase,
    IterationStats,
    SchedulerStats,
    StatLoggerBase,
)
from quire.frontend.output_processor import OutputProcessor
from quire.params import SamplingParams
from quire.protocol import EngineCoreOutput, EngineCoreOutputs
from quire.protocol import SchedulerStats as EngineStats

MakeConfig = Callable[..., EngineConfig]
ENGINE_STATS = EngineStats(
    num_running=3, num_waiting=2, kv_cache_usage=0.5, num_prefix_queried_tokens=9,
    num_prefix_hit_tokens=4, num_preemptions=1,
)  # fmt: skip


class Logger(StatLoggerBase):
    """Keeps what it is told."""

    def __init__(self, vllm_config: EngineConfig, engine_index: int = 0) -> None:
        self.config, self.index = vllm_config, engine_index
        self.told: list[Any] = []
        self.records: list[tuple[SchedulerStats | None, IterationStats]] = []

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: None = None,
        engine_idx: int = 0,
    ) -> None:
        assert iteration_stats is not None
        assert (mm_cache_stats, engine_idx) == (None, 0)
        self.records.append((scheduler_stats, iteration_stats))

    def log_engine_initialized(self) -> None:
        self.told.append("ready")

    def log(self) -> None:
        self.told.append("log")

    def record_sleep_state(self, is_awake: int, level: int) -> None:
        self.told.append((is_awake, level))


class Aggregate(Logger, AggregateStatLoggerBase):
    def __init__(self, vllm_config: EngineConfig, engine_indexes: list[int]) -> None:
        super().__init__(vllm_config, engine_indexes[0])

    def record_admission_rejection(self, reason: str) -> None:
        self.told.append(reason)


@pytest.fixture
def made() -> list[Logger]:
    return []


@pytest.fixture
def loggers(make_config: MakeConfig, made: list[Logger]) -> UserLoggers:
    def factory(config: EngineConfig, index: int) -> Logger:
        made.append(Logger(config, index))
        return made[-1]

    return UserLoggers(make_config(), [factory])


def test_they_are_told_of_steps_and_ends(
    make_config: MakeConfig, loggers: UserLoggers, made: list[Logger]
) -> None:
    [one] = made
    assert (one.told, one.index) == (["ready"], 0)
    outputs = OutputProcessor(None, observers=[loggers])
    inputs = InputProcessor(make_config(vocab_size=288), None)
    params = SamplingParams(max_tokens=5, n=2)
    request = inputs.process("mine", [1] * 20, params, RequestOptions(arrival_time=100.0))
    outputs.add_request(request)
    first, second = (core.request_id for core in request.core_requests)

    def step(at: float, *given: EngineCoreOutput, stats: EngineStats | None = None) -> None:
        outputs.process_outputs(EngineCoreOutputs(outputs=[*given], stats=stats, timestamp=at))

    def output(name: str, count: int, **given: Any) -> EngineCoreOutput:
        return EngineCoreOutput(request_id=name, new_token_ids=[1] * count, **given)

    began = output(first, 1, num_cached_tokens=16, scheduled_time=101.0)
    step(103.0, began, output(second, 1, scheduled_time=102.0), stats=ENGINE_STATS)
    step(104.0, output(first, 2, finish_reason="stop"), output(second, 1))
    step(105.0, output(second, 3, finish_reason="length"))
    (scheduler, begun), (none, ended), (_, last) = one.records
    assert scheduler is not None
    assert (scheduler.num_running_reqs, scheduler.num_waiting_reqs) == (3, 2)
    assert scheduler.prefix_cache_stats.hits == 4
    assert none is None
    assert (begun.iteration_timestamp, begun.num_generation_tokens) == (103.0, 2)
    assert begun.time_to_first_tokens_iter == [3.0, 3.0]
    prompt = begun.prompt_token_stats
    assert (prompt.total, prompt.computed, prompt.local_cache_hit) == (20, 4, 16)
    assert begun.num_prompt_tokens == 20
    assert begun.num_preempted_reqs == 1
    assert ended.inter_token_latencies_iter == [1.0, 1.0]
    assert ended.n_params_iter == []
    [finished] = ended.finished_requests
    assert (finished.request_id, finished.finish_reason) == ("mine", "stop")
    assert (finished.e2e_latency, finished.queued_time) == (4.0, 1.0)
    assert (finished.prefill_time, finished.decode_time) == (2.0, 1.0)
    assert (finished.inference_time, finished.mean_time_per_output_token) == (3.0, 0.5)
    assert (finished.num_prompt_tokens, finished.num_generation_tokens) == (20, 3)
    assert (finished.max_tokens_param, finished.num_cached_tokens) == (5, 16)
    assert (last.n_params_iter, last.max_num_generation_tokens_iter) == ([2], [5])


def test_what_ends_between_steps_is_in_the_next_record(
    make_config: MakeConfig, loggers: UserLoggers, made: list[Logger]
) -> None:
    outputs = OutputProcessor(None, observers=[loggers])
    outputs.add_request(InputProcessor(make_config(), None).process("r", [1], SamplingParams()))
    outputs.abort_requests(["r"])
    outputs.process_outputs(EngineCoreOutputs(outputs=[], timestamp=1.0))
    [(_, iteration)] = made[0].records
    [finished] = iteration.finished_requests
    assert (finished.finish_reason, finished.decode_time) == ("abort", 0.0)


def test_they_log_when_asked_and_when_due(
    monkeypatch: pytest.MonkeyPatch, make_config: MakeConfig
) -> None:
    now = [100.0]
    monkeypatch.setattr(user_loggers.time, "monotonic", lambda: now[0])
    one = Logger(make_config())
    loggers = UserLoggers(make_config(), [lambda *_: one])
    loggers.log_when_due()
    now[0] += 10
    loggers.log_when_due()
    loggers.log_when_due()
    loggers.log()
    assert one.told == ["ready", "log", "log"]


def test_sleep_and_rejections(
    make_config: MakeConfig, loggers: UserLoggers, made: list[Logger]
) -> None:
    aggregates: list[Aggregate] = []

    class Kept(Aggregate):
        def __init__(self, vllm_config: EngineConfig, engine_indexes: list[int]) -> None:
            super().__init__(vllm_config, engine_indexes)
            aggregates.append(self)

    for each in (loggers, UserLoggers(make_config(), [Kept])):
        each.on_sleep(2)
        each.on_sleep(None)
        each.on_rejected("max_num_queued_reqs")
    assert made[0].told == ["ready", (1, 2), (0, 0)]
    assert aggregates[0].told == [*made[0].told, "max_num_queued_reqs"]


@pytest.mark.parametrize("error", [OSError("the disk is full"), SystemExit(3)], ids=repr)
def test_one_that_fails_is_not_called_again(make_config: MakeConfig, error: BaseException) -> None:
    class Failing(Logger):
        def log(self) -> None:
            self.told.append("log")
            raise error

    failing, well = Failing(make_config()), Logger(make_config())
    both = UserLoggers(make_config(), [lambda *_: failing, lambda *_: well])
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Lines()
    user_loggers.logger.addHandler(handler)
    both.log()
    both.log()
    user_loggers.logger.removeHandler(handler)
    assert failing.told == ["ready", "log"]
    assert well.told == ["ready", "log", "log"]
    assert lines == ["the stat logger Failing failed and is not called again"]


@pytest.mark.parametrize("given", [[3], "text", print, [None]])
def test_what_makes_no_logger_is_refused(make_config: MakeConfig, given: Any) -> None:
    with pytest.raises(ConfigError, match="stat_loggers must be a list"):
        UserLoggers(make_config(), given)
