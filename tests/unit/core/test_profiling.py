"""Recorded steps: which of them, what a trace holds, and when a session is refused."""

from __future__ import annotations

import gzip
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from quire.config.records import ProfilerConfig
from quire.core import engine_profiler, trace
from quire.core.engine_profiler import EngineProfiler
from quire.errors import ConfigError
from quire.protocol import SchedulePlan

PLAN = SchedulePlan(
    request_ids=["a", "b"], num_scheduled_tokens=[3, 1], started={}, new_block_ids={},
    released_request_ids=[],
)  # fmt: skip


def profiler_in(directory: Path, **fields: Any) -> EngineProfiler:
    return EngineProfiler(ProfilerConfig(str(directory), **fields))


def a_step() -> str:
    def inner() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        inner()
    return "done"


def events_in(directory: Path) -> list[dict[str, Any]]:
    [path] = directory.iterdir()
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt") as file:
        found: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return found


def numbers(events: list[dict[str, Any]]) -> list[int]:
    return [event["args"]["number"] for event in events if event["name"] == "step"]


def test_a_trace_has_steps_plans_and_calls(tmp_path: Path) -> None:
    profiler = profiler_in(tmp_path / "new")
    assert profiler.run(a_step) == "done"
    profiler.start("run.1")
    assert profiler.run(a_step) == "done"
    profiler.run(lambda: profiler.computed(PLAN, 1.0, 1.5))
    profiler.computed(PLAN, 2.0, 2.5)
    profiler.stop()
    assert profiler.run(a_step) == "done"
    [path] = (tmp_path / "new").iterdir()
    assert path.name.startswith("run.1_rank0.")
    assert path.name.endswith(".pt.trace.json.gz")
    events = events_in(tmp_path / "new")
    assert numbers(events) == [1, 2]
    [compute] = [event for event in events if event["name"] == "compute"]
    assert compute["args"] == {"requests": 2, "started": 0, "tokens": 4}
    assert compute["dur"] == pytest.approx(5e5)
    own = [event for event in events if "test_profiling.py" in event["name"]]
    names = {event["name"].rpartition(".")[2].rpartition(" ")[2] for event in own}
    assert {"a_step", "inner"} <= names
    step = next(event for event in events if event["name"] == "step")
    inner = next(event for event in own if event["name"].endswith("inner"))
    assert step["ts"] <= inner["ts"]
    assert inner["ts"] + inner["dur"] <= step["ts"] + step["dur"] + 1


def test_the_configuration_says_which_steps_and_how(tmp_path: Path) -> None:
    profiler = profiler_in(
        tmp_path, torch_profiler_with_stack=False, torch_profiler_use_gzip=False,
        delay_iterations=2, max_iterations=3,
    )  # fmt: skip
    profiler.start()
    for number in range(9):
        profiler.run(lambda number=number: profiler.computed(PLAN, number, number + 1))  # type: ignore[misc]
    profiler.stop()
    events = events_in(tmp_path)
    assert numbers(events) == [1, 2, 3]
    computed = [event["dur"] for event in events if event["name"] == "compute"]
    assert len(events) == 2 * len(computed) == 6
    begins = [event["ts"] for event in events if event["name"] == "compute"]
    assert begins[1] - begins[0] == pytest.approx(1e6)


def test_a_session_overrides_the_configuration(tmp_path: Path) -> None:
    profiler = profiler_in(tmp_path, delay_iterations=5, max_iterations=1)
    profiler.start(delay_iterations=0, max_iterations=0)
    for _ in range(3):
        profiler.run(a_step)
    profiler.stop()
    assert numbers(events_in(tmp_path)) == [1, 2, 3]


def test_a_failing_step_is_recorded_and_raises(tmp_path: Path) -> None:
    profiler = profiler_in(tmp_path)
    profiler.start()

    def fails() -> None:
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        profiler.run(fails)
    assert sys.getprofile() is None
    profiler.stop()
    assert numbers(events_in(tmp_path)) == [1]


def test_a_full_trace_records_steps_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_MOST_CALLS", 1)
    told: list[str] = []
    monkeypatch.setattr(engine_profiler.logger, "warning", told.append)
    profiler = profiler_in(tmp_path)
    profiler.start()
    for _ in range(4):
        profiler.run(a_step)
    profiler.stop()
    events = events_in(tmp_path)
    assert numbers(events) == [1, 2, 3, 4]
    assert sum(event["name"].endswith("a_step") for event in events) == 1
    assert "full" in told[0]


def test_one_session_at_a_time(tmp_path: Path) -> None:
    profiler = profiler_in(tmp_path)
    profiler.start()
    with pytest.raises(ConfigError, match="already active"):
        profiler.start()
    profiler.stop()
    profiler.start()
    profiler.stop()
    assert len(list(tmp_path.iterdir())) == 2


def test_no_session_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(engine_profiler.logger, "warning", told.append)
    profiler_in(tmp_path).stop()
    assert "no profiling session" in told[0]
    assert not list(tmp_path.iterdir())


def test_without_a_directory_it_is_refused() -> None:
    profiler = EngineProfiler(None)
    assert profiler.run(a_step) == "done"
    for call in (profiler.start, profiler.stop):
        with pytest.raises(ConfigError, match="torch_profiler_dir"):
            call()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"profile_prefix": "../x"}, "profile_prefix"), ({"profile_prefix": ""}, "profile_prefix"),
        ({"profile_prefix": 3}, "profile_prefix"), ({"delay_iterations": -1}, "delay_iterations"),
        ({"max_iterations": True}, "max_iterations"), ({"max_iterations": 1.5}, "max_iterations"),
    ],
)  # fmt: skip
def test_wrong_values_are_named(tmp_path: Path, fields: Any, named: str) -> None:
    profiler = profiler_in(tmp_path)
    with pytest.raises(ConfigError, match=named):
        profiler.start(**fields)
    profiler.start()


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    profiler = profiler_in(tmp_path / "file")
    profiler.start()
    with pytest.raises(ConfigError, match="cannot be written"):
        profiler.stop()
    profiler.start()


def test_ranks_are_processes_of_one_trace(tmp_path: Path) -> None:
    switched: list[bool] = []

    def ranks(is_on: bool) -> list[trace.RankSpans]:
        switched.append(is_on)
        epoch = time.time() - time.perf_counter()
        return [
            trace.RankSpans(
                name=f"rank {n}", pid=10 + n, epoch=epoch + n, spans=[(1.0 - n, 1.5 - n, 0.25)]
            )
            for n in range(2)
        ]

    profiler = EngineProfiler(ProfilerConfig(str(tmp_path)), ranks)
    profiler.start()
    profiler.run(a_step)
    profiler.stop()
    assert switched == [True, False]
    events = [event for event in events_in(tmp_path) if event["pid"] in (10, 11)]
    assert [event["args"] for event in events] == [
        {"name": "rank 0"}, {"waited_ms": 250.0}, {"name": "rank 1"}, {"waited_ms": 250.0}
    ]  # fmt: skip
    first, second = (event for event in events if event["name"] == "rank step")
    assert first["dur"] == second["dur"] == 500_000
    assert abs(first["ts"] - second["ts"]) < 10_000  # their clocks have other beginnings
