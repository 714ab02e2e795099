"""What `executor/base.py` promises, held against every executor."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_writer import write_adapter
from executor_plans import PROMPT, config_of, outputs, plan_of

from quire.adapters import LoRARequest
from quire.config.records import EngineConfig
from quire.core.engine_core import EngineCore
from quire.errors import BackendError, ConfigError
from quire.executor import Executor, UniProcExecutor, part_of_rank
from quire.executor.factory import make_executor
from quire.executor.multiproc import MultiprocExecutor
from quire.executor.runners import make_runner
from quire.params import SamplingParams
from quire.protocol import EngineCoreRequest, SchedulePlan, StepResult
from quire.worker.worker import Worker


class TwoRankExecutor(Executor):
    """Each of its ranks computes the whole model, and their answers must agree. Both workers are in
    this process and compute one after the other."""

    num_ranks = 2
    max_plans_in_flight = 2

    def __init__(self, config: EngineConfig) -> None:
        self._workers = [Worker(config), Worker(config)]
        self._runners = [make_runner(config, worker.model) for worker in self._workers]
        self._submitted: deque[SchedulePlan] = deque()

    def submit(self, plan: SchedulePlan) -> None:
        self._submitted.append(plan)

    def collect(self) -> StepResult:
        plan = self._submitted.popleft()
        outcomes: list[StepResult | BackendError] = []
        for runner, worker in zip(self._runners, self._workers, strict=True):
            try:
                begun = runner.begin(plan)
                outcomes.append(runner.finish(begun, worker.model.step(begun.batch)))
            except BackendError as error:
                outcomes.append(error)
        first, second = outcomes
        if isinstance(first, BackendError):
            raise first
        if first != second:
            raise BackendError(f"rank 1 diverged: {second} is not {first}")
        return first

    def read_blocks(self, block_ids: Sequence[int], group: int, kept: int, out: memoryview) -> None:
        for rank, worker in enumerate(self._workers):
            part = part_of_rank(out, len(block_ids), rank, self.num_ranks)
            own = bytearray(part.size)
            worker.read_blocks(block_ids, group, kept, memoryview(own))
            part[:] = np.frombuffer(own, np.uint8).reshape(part.shape)

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        for rank, worker in enumerate(self._workers):
            part = part_of_rank(data, len(block_ids), rank, self.num_ranks)
            worker.write_blocks(block_ids, memoryview(part.tobytes()))

    def call(self, method: str | Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        return [worker.call(method, *args, **kwargs) for worker in self._workers]

    def progress(self) -> int | None:
        counts = [worker.progress() for worker in self._workers]
        return None if None in counts else sum(count for count in counts if count is not None)

    def failure(self) -> str | None:
        return None

    def shutdown(self) -> None:
        for worker in self._workers:
            worker.close()


_HAS_RAY = find_spec("ray") is not None
_RAY = [
    pytest.mark.long,  # a Ray cluster is a dozen processes
    pytest.mark.skipif(
        not _HAS_RAY, reason="Ray is not installed: pip install 'quire-engine[ray]'"
    ),
]
KINDS: dict[str, tuple[Callable[[EngineConfig], Executor], dict[str, Any]]] = {
    "uni": (UniProcExecutor, {}),
    "two ranks": (TwoRankExecutor, {}),
    "mp": (MultiprocExecutor, {"distributed_executor_backend": "mp"}),
    "mp, 2 parts": (MultiprocExecutor, {"tensor_parallel_size": 2}),
    "mp, 2 stages of 2 parts": (
        MultiprocExecutor,
        {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "backend": "cpu"},
    ),
    "ray": (make_executor, {"distributed_executor_backend": "ray"}),
    "ray, 2 stages of 2 parts": (
        make_executor,
        {
            "distributed_executor_backend": "ray",
            "tensor_parallel_size": 2,
            "pipeline_parallel_size": 2,
            "backend": "cpu",
        },
    ),
}
_PARAMS = [
    pytest.param(kind, id=name, marks=_RAY if name.startswith("ray") else [])
    for name, kind in KINDS.items()
]


@pytest.fixture(scope="module", params=_PARAMS)
def made(
    request: pytest.FixtureRequest, model_dir: Path
) -> Iterator[tuple[Executor, EngineConfig]]:
    """An executor for all tests, because the start of processes takes seconds."""
    make, given = request.param
    config = config_of(model_dir, **given)
    executor: Executor = make(config)
    yield executor, config
    executor.shutdown()
    executor.shutdown()
    executor.submit(plan_of("z", PROMPT))
    with pytest.raises(BackendError, match="closed"):  # nothing runs after the end
        executor.collect()


@pytest.fixture
def executor(made: tuple[Executor, EngineConfig]) -> Iterator[Executor]:
    yield made[0]
    last = plan_of("last", PROMPT[:3])
    last.released_request_ids = [*"abcd", "last"]
    made[0].submit(last)
    made[0].collect()


@pytest.fixture
def config(made: tuple[Executor, EngineConfig]) -> EngineConfig:
    return made[1]


@pytest.mark.sweep(2)
def test_results_come_in_the_order_of_plans(executor: Executor) -> None:
    plans = [plan_of(name, PROMPT[: 9 + index]) for index, name in enumerate("abcd")]
    results: list[Any] = []
    for plan in plans:
        executor.submit(plan)
        if len(results) + executor.max_plans_in_flight <= plans.index(plan) + 1:
            results.append(executor.collect())
    while len(results) < len(plans):
        results.append(executor.collect())
    for plan, result in zip(plans, results, strict=True):
        assert list(result.logprobs) == plan.request_ids
        assert len(result.sampled_token_ids[0]) == 1


def test_a_plan_that_fails_ends_alone(executor: Executor) -> None:
    wrong = plan_of("a", PROMPT)
    wrong.started["a"].block_ids = [[5, 10**6, 3]]
    executor.submit(wrong)
    with pytest.raises(BackendError, match="block id"):
        executor.collect()
    after = plan_of("b", PROMPT)
    after.released_request_ids = ["a"]
    executor.submit(after)
    assert len(executor.collect().sampled_token_ids[0]) == 1


def test_blocks_go_out_and_come_back_by_rank(executor: Executor, config: EngineConfig) -> None:
    """A step over blocks that were copied gives what a step over the blocks gave."""
    executor.submit(plan_of("a", PROMPT))
    whole = executor.collect()
    size = 2 * config.cache.block_bytes // config.parallel.world_size
    held = memoryview(bytearray(executor.num_ranks * size))
    executor.read_blocks([5, 2], 0, config.cache.block_size, held)
    parts = [part_of_rank(held, 2, rank, executor.num_ranks) for rank in range(executor.num_ranks)]
    assert all(part.any(axis=1).all() for part in parts)
    one = memoryview(bytearray(len(held) // 2))  # blocks lie one after the other
    executor.read_blocks([2], 0, config.cache.block_size, one)
    assert bytes(one) == bytes(held[len(held) // 2 :])
    executor.write_blocks([5, 2], memoryview(bytearray(len(held))))
    executor.write_blocks([5, 2], held)
    again = plan_of("b", PROMPT, computed=32)
    again.released_request_ids = ["a"]
    executor.submit(again)
    assert executor.collect().logprobs["b"] == whole.logprobs["a"]
    with pytest.raises(ValueError, match=r"reshape|shape|blocks"):
        executor.read_blocks([5, 2, 3], 0, 1, held)


def test_ranks_say_what_they_did(executor: Executor, config: EngineConfig) -> None:
    executor.call("record_steps", True)
    executor.submit(plan_of("a", PROMPT))
    executor.collect()
    recorded = executor.call("record_steps", False)
    stats = executor.call("rank_stats")
    assert len(stats) == len(recorded) == executor.num_ranks
    if isinstance(executor, TwoRankExecutor):
        return  # its ranks are two whole models, which do not know each other
    assert [one["rank"] for one in stats] == list(range(executor.num_ranks))
    assert [one["name"] for one in recorded] == [str(rank) for rank in config.parallel.ranks]
    for one, spans in zip(stats, recorded, strict=True):
        [(begin_s, end_s, waited_s)] = spans["spans"]
        assert 0 <= waited_s <= end_s - begin_s
        assert spans["pid"] == one["pid"]
        assert (one["waited_s"] > 0) == (executor.num_ranks > 1)
    assert [one["spans"] for one in executor.call("record_steps", False)] == [[]] * len(stats)


def test_calls_reach_every_rank(executor: Executor) -> None:
    found = executor.call("get_model_inspection")
    assert len(found) == executor.num_ranks
    if isinstance(executor, MultiprocExecutor):
        with pytest.raises(ConfigError, match="name of a method"):
            executor.call(lambda worker: isinstance(worker, Worker))
    else:
        workers = executor.call(lambda worker: isinstance(worker, Worker))
        assert workers == [True] * executor.num_ranks
    with pytest.raises(ConfigError, match="no method"):
        executor.call("nothing")
    assert executor.failure() is None


@pytest.mark.parametrize(
    "given",
    [
        {"tensor_parallel_size": 2},
        {"pipeline_parallel_size": 2},
        {"tensor_parallel_size": 3, "backend": "cpu"},
    ],
    ids=str,
)
def test_ranks_have_the_tokens_of_one(
    model_dir: Path, tmp_path: Path, given: dict[str, Any]
) -> None:
    """Also of several requests at once, with and without an adapter, whose prompts are cut into
    chunks."""
    adapter = LoRARequest("mine", 1, str(write_adapter(tmp_path / "mine", model_dir)))

    def found(**given: Any) -> dict[str, list[Any]]:
        lora = {"enable_lora": True, "max_lora_rank": 8}
        core = EngineCore(config_of(model_dir, max_num_batched_tokens=24, **lora, **given))
        return outputs(core, [None, adapter, None, adapter])

    backend = given.get("backend", "reference")
    assert found(**given) == found(backend=backend)


def test_an_engine_runs_on_any_executor(model_dir: Path) -> None:
    config = config_of(model_dir)

    def tokens(executor: Executor) -> list[int]:
        core = EngineCore(config, executor)
        params = SamplingParams(temperature=1.0, seed=3, max_tokens=12, ignore_eos=True)
        core.add_request(
            EngineCoreRequest(
                request_id="a", prompt_token_ids=PROMPT, sampling_params=params, arrival_time=0.0
            )
        )
        found: list[int] = []
        while core.has_unfinished_requests():
            found += [token for one in core.step().outputs for token in one.new_token_ids]
        core.shutdown()
        return found

    assert tokens(TwoRankExecutor(config)) == tokens(make_executor(config))


def test_parts_are_of_one_size() -> None:
    buffer = memoryview(bytearray(range(12)))
    assert part_of_rank(buffer, 2, 2, 3).tolist() == [[4, 5], [10, 11]]
    with pytest.raises(ValueError, match="12 bytes do not divide into 2 blocks with a part"):
        part_of_rank(buffer, 2, 0, 4)
