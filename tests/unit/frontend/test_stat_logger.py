"""The statistics line: vLLM's words, and silence while idle."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from quire.config.records import EngineConfig
from quire.frontend.inputs.input_processor import InputProcessor
from quire.frontend.observers.engine_metrics import LoggingStatLogger
from quire.frontend.observers.observer import StepTokens
from quire.frontend.output_processor import OutputProcessor
from quire.params import SamplingParams
from quire.protocol import EngineCoreOutput, EngineCoreOutputs, SchedulerStats


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def lines() -> Iterator[list[logging.LogRecord]]:
    logger, handler = logging.getLogger("quire.frontend.observers.engine_metrics"), Lines()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler.records
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("quire.frontend.observers.engine_metrics.time.monotonic", lambda: now[0])
    return now


def test_the_line(
    make_config: Callable[..., EngineConfig],
    lines: list[logging.LogRecord],
    clock: list[float],
) -> None:
    stats = LoggingStatLogger(make_config())
    snapshot = SchedulerStats(
        num_running=3, num_waiting=2, kv_cache_usage=0.125,
        num_prefix_queried_tokens=200, num_prefix_hit_tokens=50,
    )  # fmt: skip
    outputs = OutputProcessor(None, observers=[stats])
    inputs = InputProcessor(make_config(max_model_len=200, vocab_size=288), None)
    request = inputs.process("r", [1] * 160, SamplingParams(max_tokens=40))
    outputs.add_request(request)
    [core] = request.core_requests
    step = EngineCoreOutput(
        request_id=core.request_id, new_token_ids=[1] * 30, num_cached_tokens=10
    )
    outputs.process_outputs(EngineCoreOutputs(outputs=[step], stats=snapshot))
    clock[0] += 5
    step = EngineCoreOutput(request_id=core.request_id, new_token_ids=[1] * 10)
    outputs.process_outputs(EngineCoreOutputs(outputs=[step]))
    assert lines == []
    clock[0] += 5
    stats.on_step(StepTokens(), None, 0.0)
    assert [record.getMessage() for record in lines] == [
        "Engine 000: Avg prompt throughput: 15.0 tokens/s, "
        "Avg generation throughput: 4.0 tokens/s, Running: 3 reqs, Waiting: 2 reqs, "
        "CPU KV cache usage: 12.5%, Prefix cache hit rate: 25.0%"
    ]


def test_preemptions_are_told(
    make_config: Callable[..., EngineConfig], lines: list[logging.LogRecord], clock: list[float]
) -> None:
    stats = LoggingStatLogger(make_config())
    clock[0] += 10
    snapshot = SchedulerStats(num_running=1, num_waiting=0, kv_cache_usage=0, num_preemptions=2)
    stats.on_step(StepTokens(), snapshot, 0.0)
    assert "Preemptions: 2, CPU KV cache" in lines[0].getMessage()
    assert "Prefix cache hit rate" not in lines[0].getMessage()


def test_an_idle_engine_falls_silent(
    make_config: Callable[..., EngineConfig], lines: list[logging.LogRecord], clock: list[float]
) -> None:
    stats = LoggingStatLogger(make_config())
    for _ in range(3):
        clock[0] += 10
        stats.log()
    assert [record.levelname for record in lines] == ["INFO", "DEBUG", "DEBUG"]
