"""EngineCore: a failing step harms its own requests only, and broken books are not hidden."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quire.config.records import EngineConfig
from quire.core.engine_core import EngineCore
from quire.errors import BackendError, DeviceError, EngineDeadError, IntegrityError
from quire.executor import Executor
from quire.params import SamplingParams
from quire.protocol import EngineCoreRequest, SchedulePlan, StepResult


class CountingExecutor(Executor):
    """Samples 65 once a prompt is done; fails when told to."""

    def __init__(self) -> None:
        self.fails = False
        self.is_lost = False
        self.is_interrupted = False
        self.refuses = False
        self.is_shut_down = False
        self.left: dict[str, int] = {}
        self.submitted: list[SchedulePlan] = []

    def submit(self, plan: SchedulePlan) -> None:
        if self.refuses:
            raise BackendError("the workers are gone")
        self.submitted.append(plan)

    def collect(self) -> StepResult:
        plan = self.submitted.pop(0)
        if self.is_interrupted:
            self.is_interrupted = False
            raise KeyboardInterrupt
        for new in plan.started.values():
            self.left[new.request_id] = len(new.token_ids) - new.num_computed_tokens
        if self.is_lost:
            raise DeviceError("the GPU has failed")
        if self.fails:
            raise BackendError("out of memory")
        sampled = []
        for name, count in zip(plan.request_ids, plan.num_scheduled_tokens, strict=True):
            self.left[name] -= count
            sampled.append([] if self.left[name] else [65])
            self.left[name] += 1 if not self.left[name] else 0
        return StepResult(sampled_token_ids=sampled)

    def call(self, method: str, *args: object) -> list[object]:
        raise AttributeError(f"{method}{args}")

    def failure(self) -> str | None:
        return None

    def shutdown(self) -> None:
        self.is_shut_down = True


def request(name: str, max_tokens: int = 3) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=name,
        prompt_token_ids=[1, 2, 3],
        sampling_params=SamplingParams(max_tokens=max_tokens, seed=1),
        arrival_time=0.0,
    )


@pytest.fixture
def executor() -> CountingExecutor:
    return CountingExecutor()


@pytest.fixture
def core(make_config: Callable[..., EngineConfig], executor: CountingExecutor) -> EngineCore:
    return EngineCore(make_config(max_num_seqs=2), executor)


def test_a_gpu_that_has_failed_ends_the_engine(
    core: EngineCore, executor: CountingExecutor
) -> None:
    """Another request could not be computed either."""
    core.add_request(request("a"))
    executor.is_lost = True
    with pytest.raises(EngineDeadError, match="the GPU has failed"):
        core.step()


def test_steps_until_done(core: EngineCore) -> None:
    core.add_request(request("a"))
    core.add_request(request("b", max_tokens=1))
    outputs = [one for _ in range(3) for one in core.step().outputs]
    assert [(one.request_id, one.finish_reason) for one in outputs] == [
        ("a", None), ("b", "length"), ("a", None), ("a", "length"),
    ]  # fmt: skip
    assert not core.has_unfinished_requests()


def test_a_failing_step_ends_its_requests_and_no_others(
    core: EngineCore, executor: CountingExecutor
) -> None:
    for name in "abc":
        core.add_request(request(name))
    executor.fails = True
    failed = core.step().outputs
    assert [(one.request_id, one.finish_reason) for one in failed] == [
        ("a", "error"), ("b", "error"),
    ]  # fmt: skip
    assert failed[0].error == "the step failed: out of memory"
    executor.fails = False
    reasons = [one.finish_reason for _ in range(3) for one in core.step().outputs]
    assert reasons == [None, None, "length"]
    assert core.commands["block_map"]()["used"] == 0


def test_a_programming_error_is_not_swallowed(
    core: EngineCore, executor: CountingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> StepResult:
        raise ZeroDivisionError

    monkeypatch.setattr(executor, "collect", broken)
    core.add_request(request("a"))
    with pytest.raises(ZeroDivisionError):
        core.step()


def test_leaked_blocks_are_noticed_when_idle(core: EngineCore) -> None:
    core.add_request(request("a", max_tokens=1))
    core.scheduler.kv.allocate_slots(core.scheduler.kv.open(), [1], 0, 1)
    with pytest.raises(IntegrityError, match="still held"):
        core.step()


def test_abort_reset_and_shutdown(core: EngineCore, executor: CountingExecutor) -> None:
    core.add_request(request("a"))
    core.step()
    assert core.commands["reset_prefix_cache"]() is False
    core.abort_requests(["a", "never"])
    assert not core.has_unfinished_requests()
    assert core.commands["reset_prefix_cache"]() is True
    core.shutdown()
    assert executor.is_shut_down


def test_a_step_that_is_interrupted_is_computed_again(
    core: EngineCore, executor: CountingExecutor
) -> None:
    core.add_request(request("a"))
    core.step()
    executor.is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        core.step()
    core.scheduler.check_integrity()
    outputs = [one for _ in range(2) for one in core.step().outputs]
    assert [one.finish_reason for one in outputs] == [None, "length"]
    assert executor.submitted == []


def test_without_requests_a_step_tells_the_statistics(
    core: EngineCore, executor: CountingExecutor
) -> None:
    outputs = core.step()
    assert outputs.outputs == []
    assert outputs.stats is not None
    assert executor.submitted == []


@pytest.fixture
def deep(make_config: Callable[..., EngineConfig], executor: CountingExecutor) -> EngineCore:
    """A core whose executor takes two plans."""
    executor.max_plans_in_flight = 2
    return EngineCore(make_config(max_num_seqs=2), executor)


def test_plans_are_submitted_ahead_as_far_as_the_executor_takes_them(
    deep: EngineCore, executor: CountingExecutor
) -> None:
    deep.add_request(request("a"))
    deep.add_request(request("b", max_tokens=1))
    assert [one.request_id for one in deep.step().outputs] == ["a", "b"]
    assert [plan.request_ids for plan in executor.submitted] == [["a"], ["a"]]
    assert [one.finish_reason for one in deep.step().outputs] == [None]
    assert [one.finish_reason for one in deep.step().outputs] == ["length"]
    assert not deep.has_unfinished_requests()
    assert executor.submitted == []


def test_plans_of_aborted_requests_are_collected(
    deep: EngineCore, executor: CountingExecutor
) -> None:
    deep.add_request(request("a", max_tokens=10))
    deep.step()
    deep.abort_requests(["a"])
    assert deep.has_unfinished_requests()
    while deep.has_unfinished_requests():
        assert deep.step().outputs == []
    assert executor.submitted == []
    assert deep.commands["block_map"]()["used"] == 0


def test_a_failing_step_ends_its_requests_though_later_plans_have_them(
    deep: EngineCore, executor: CountingExecutor
) -> None:
    deep.add_request(request("a"))
    deep.step()
    executor.fails = True
    assert [one.finish_reason for one in deep.step().outputs] == ["error"]
    executor.fails = False
    deep.add_request(request("b", max_tokens=1))
    outputs = []
    while deep.has_unfinished_requests():
        outputs += deep.step().outputs
    assert [(one.request_id, one.finish_reason) for one in outputs] == [("b", "length")]


def test_a_window_has_room_for_the_tokens_of_all_plans_in_flight(
    core: EngineCore, executor: CountingExecutor
) -> None:
    max_chunk = core.scheduler.kv.max_chunk
    executor.max_plans_in_flight = 3
    assert EngineCore(core.config, executor).scheduler.kv.max_chunk == 3 * max_chunk


def test_a_plan_that_the_executor_refuses_ends_its_requests_alone(
    core: EngineCore, executor: CountingExecutor
) -> None:
    core.add_request(request("a"))
    executor.refuses = True
    outputs = core.step().outputs
    assert [(one.request_id, one.finish_reason) for one in outputs] == [("a", "error")]
    assert "the workers are gone" in str(outputs[0].error)
    executor.refuses = False
    core.add_request(request("b"))
    while core.has_unfinished_requests():
        outputs = core.step().outputs
    assert outputs[0].finish_reason == "length"
