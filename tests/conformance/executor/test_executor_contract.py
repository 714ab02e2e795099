"""What `executor/base.py` promises, held against every executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_checkpoint import write_tiny_checkpoint
from two_ranks import TwoRankExecutor

from quire.config.engine_args import EngineArgs
from quire.config.records import EngineConfig
from quire.core.engine_core import EngineCore
from quire.errors import BackendError, ConfigError
from quire.executor import Executor, UniProcExecutor, part_of_rank
from quire.executor.factory import make_executor
from quire.params import SamplingParams
from quire.planning.plan import build_engine_config
from quire.protocol import EngineCoreRequest, ScheduledRequest, SchedulePlan
from quire.worker.worker import Worker

KINDS: dict[str, Callable[[EngineConfig], Executor]] = {
    "uni": UniProcExecutor,
    "two ranks": TwoRankExecutor,
}
PROMPT = [*range(3, 43)]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    directory: Path = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
    args = EngineArgs(str(directory), backend="reference", max_model_len=64, max_num_seqs=4)
    return build_engine_config(args)


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def executor(request: pytest.FixtureRequest, config: EngineConfig) -> Iterator[Executor]:
    made: Executor = request.param(config)
    yield made
    made.shutdown()
    made.shutdown()


def plan_of(request_id: str, token_ids: list[int], computed: int = 0) -> SchedulePlan:
    request = ScheduledRequest(
        request_id=request_id,
        token_ids=token_ids,
        num_prompt_tokens=len(token_ids),
        sampling_params=SamplingParams(temperature=0, seed=0, logprobs=2),
        block_ids=[[5, 2, 3]],
        first_entries=[0],
        num_computed_tokens=computed,
    )
    return SchedulePlan(
        request_ids=[request_id],
        num_scheduled_tokens=[len(token_ids) - computed],
        started={request_id: request},
        new_block_ids={},
        released_request_ids=[],
    )


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
    size = 2 * config.cache.block_bytes
    held = memoryview(bytearray(executor.num_ranks * size))
    executor.read_blocks([5, 2], 0, config.cache.block_size, held)
    parts = [bytes(part_of_rank(held, rank, executor.num_ranks)) for rank in range(2)][: len(held)]
    assert np.frombuffer(parts[0], np.uint8).any()
    executor.write_blocks([5, 2], memoryview(bytearray(len(held))))
    executor.write_blocks([5, 2], held)
    again = plan_of("b", PROMPT, computed=32)
    again.released_request_ids = ["a"]
    executor.submit(again)
    assert executor.collect().logprobs["b"] == whole.logprobs["a"]
    with pytest.raises(ValueError, match=r"reshape|shape|blocks"):
        executor.read_blocks([5, 2, 3], 0, 1, held)


def test_calls_reach_every_rank(executor: Executor) -> None:
    found = executor.call("get_model_inspection")
    assert len(found) == executor.num_ranks
    workers = executor.call(lambda worker: isinstance(worker, Worker))
    assert workers == [True] * executor.num_ranks
    with pytest.raises(ConfigError, match="no method"):
        executor.call("nothing")
    assert executor.failure() is None


def test_nothing_runs_after_the_end(executor: Executor) -> None:
    executor.shutdown()
    executor.submit(plan_of("a", PROMPT))
    with pytest.raises(BackendError, match="closed"):
        executor.collect()


def test_an_engine_runs_on_any_executor(config: EngineConfig) -> None:
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
    buffer = memoryview(bytearray(range(6)))
    assert bytes(part_of_rank(buffer, 2, 3)) == bytes([4, 5])
    with pytest.raises(ValueError, match="6 bytes cannot be divided into 4 equal parts"):
        part_of_rank(buffer, 0, 4)
