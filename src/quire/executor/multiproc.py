"""`MultiprocExecutor`: a process for each rank of the model (`distributed_executor_backend="mp"`).

Requests, and how their tokens are chosen, are known here alone. A rank gets the arrays of a step
and computes its part; the first rank of the last stage returns the chosen tokens. So a step is one
message to each rank and one back, and the stages of a pipeline have a step each.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import SamplingColumns
from quire.backends.records import (
    LoadedAdapter,
    NamedAdapter,
    StepBatch,
    StepOutput,
    loaded_adapter,
)
from quire.config.ranks import Rank
from quire.config.records import EngineConfig
from quire.errors import BackendError, ConfigError
from quire.executor.base import Executor, part_of_rank
from quire.executor.messages import from_plain, to_plain
from quire.executor.rank_processes import RankProcesses
from quire.executor.runners import make_runner, may_begin_ahead
from quire.planning.compile_plan import compile_plan
from quire.program import OpPlace
from quire.protocol import SchedulePlan, StepResult
from quire.worker.draft.loading import head_rows
from quire.worker.draft.pair import DraftingModel, DraftModel
from quire.worker.model_runner import BegunStep
from quire.worker.prompt_adapters import PromptAdapters


class RankedModel(DraftingModel):
    """The model that all ranks have together, and the draft model."""

    def __init__(self, ranks: RankProcesses, config: EngineConfig) -> None:
        self._ranks = ranks
        self.keeps_tokens = ranks.keep_tokens and may_begin_ahead(config)
        world = ranks.ranks[0].rank
        self._output = (world.num_stages - 1) * world.tensor_size
        """The rank that has the logits."""
        self.draft_model = None
        plan = None if config.draft is None else compile_plan(config).draft
        if plan is not None:
            most = plan.options.max_num_tokens
            self.draft_model = DraftModel(self.draft_step, most, head_rows(config))

    def submit(self, batch: StepBatch) -> int:
        return self._send("begin_step" if self.keeps_tokens else "step", batch)

    def draft_step(self, batch: StepBatch) -> StepOutput:
        """A step of the draft model."""
        return self.collect(self._send("draft_step", batch, of_model=True))

    def _send(self, method: str, batch: StepBatch, *, of_model: bool = False) -> int:
        whole, silent = [to_plain(batch)], [to_plain(_silent(batch))]

        def own(rank: Rank) -> list[Any]:
            return whole if rank.number == self._output else silent

        return self._ranks.send(method, own, of_model=of_model, answers=self._output)

    def collect(self, number: int) -> StepOutput:
        """The output of a step. Raises BackendError if it failed on all ranks alike, and
        EngineDeadError if the ranks compute no more."""
        [value] = self._ranks.receive(number)
        if isinstance(value, int):  # the step has begun
            number = self._ranks.send("end_step", [value], answers=self._output)
            [value] = self._ranks.receive(number)
        output: StepOutput = from_plain(value)
        return output

    def step(self, batch: StepBatch) -> StepOutput:
        return self.collect(self.submit(batch))

    def sample(self, logits: NDArray[np.float32], columns: SamplingColumns) -> StepOutput:
        given = [to_plain(logits), to_plain(columns)]
        return self.collect(self._ranks.send("sample", given, of_model=True, only=self._output))

    def copy_blocks(self, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
        given = [to_plain(sources), to_plain(targets)]
        self._ranks.receive(self._ranks.send("copy_blocks", given, of_model=True))

    def find_not_finite(self, batch: StepBatch) -> list[OpPlace | None]:
        given = [to_plain(_silent(batch))]
        number = self._ranks.send("find_not_finite", given)
        by_rank: list[list[OpPlace | None]] = from_plain(self._ranks.receive(number))
        # Of the earliest stage that has something to report.
        by_request = zip(*by_rank, strict=True)
        return [next((place for place in places if place), None) for places in by_request]


class MultiprocExecutor(Executor):
    """Starts the ranks, and runs plans on them: one for each stage at once, and one that waits; or
    two, if ranks keep sampled tokens."""

    def __init__(self, config: EngineConfig, ranks: RankProcesses | None = None) -> None:
        """`ranks`: those that are there already."""
        parallel = config.parallel
        self.num_ranks = parallel.world_size
        num_stages = parallel.pipeline_parallel_size
        if num_stages > 1 and not config.model.logits_processors:  # they see one step at a time
            self.max_plans_in_flight = num_stages + 1  # the scheduler decides about the last one
        self._block_bytes = config.cache.block_bytes // parallel.world_size
        self._ranks = ranks or RankProcesses(config)
        weakref.finalize(self, self._ranks.abandon).atexit = False
        self._model = RankedModel(self._ranks, config)
        if self._model.keeps_tokens:
            self.max_plans_in_flight = 2
        self.prompt_adapters = PromptAdapters(config)
        self._adapters = RankAdapters(self._ranks)
        self._runner = make_runner(
            config,
            self._model,
            self._adapters.get,
            self.prompt_adapters.find,
            keeps_tokens=self._model.keeps_tokens,
        )
        self._begun: deque[tuple[BegunStep, int] | BackendError] = deque()

    def submit(self, plan: SchedulePlan) -> None:
        try:
            begun = self._runner.begin(plan)
            self._begun.append((begun, self._model.submit(begun.batch)))
        except BackendError as error:
            self._begun.append(error)

    def collect(self) -> StepResult:
        begun = self._begun.popleft()
        if isinstance(begun, BackendError):
            raise begun
        step, number = begun
        return self._runner.finish(step, self._model.collect(number))

    def read_blocks(self, block_ids: Sequence[int], group: int, kept: int, out: memoryview) -> None:
        self._check_size(block_ids, out)
        for rank in range(self.num_ranks):
            data = self._ranks.call_at_once(
                rank, "read_blocks", list(map(int, block_ids)), group, kept,
                block_bytes=self._block_bytes,
            )  # fmt: skip
            if data is not None:
                part = part_of_rank(out, len(block_ids), rank, self.num_ranks)
                part[:] = np.frombuffer(data, np.uint8).reshape(part.shape)

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        self._check_size(block_ids, data)
        for rank in range(self.num_ranks):
            part = part_of_rank(data, len(block_ids), rank, self.num_ranks)
            ids = list(map(int, block_ids))
            self._ranks.call_at_once(rank, "write_blocks", ids, part.tobytes())

    def _check_size(self, block_ids: Sequence[int], buffer: memoryview) -> None:
        wanted = self.num_ranks * len(block_ids) * self._block_bytes
        if buffer.nbytes != wanted:
            raise ValueError(f"{len(block_ids)} blocks have {wanted} bytes, not {buffer.nbytes}")

    def load_adapter(self, path: str, name: str) -> dict[str, Any]:
        return self._adapters.load(path, name)

    def drop_adapter(self, digest: str) -> None:
        self._adapters.drop(digest)

    def call(self, method: str | Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        if not isinstance(method, str):
            raise ConfigError(
                "collective_rpc needs the name of a method where ranks are processes of their own; "
                "give a class with the method as worker_extension_cls"
            )
        plain = {key: to_plain(value) for key, value in kwargs.items()}
        number = self._ranks.send(method, [to_plain(value) for value in args], plain)
        return [from_plain(value) for value in self._ranks.receive(number)]

    def call_first(self, method: str, *args: Any) -> Any:
        number = self._ranks.send(method, [to_plain(value) for value in args], only=0)
        [value] = self._ranks.receive(number)
        return from_plain(value)

    def failure(self) -> str | None:
        return self._ranks.failure()

    def progress(self) -> int | None:
        return self._ranks.progress()

    @property
    def has_new_weights(self) -> bool:
        return self._ranks.has_new_weights

    def shutdown(self) -> None:
        self._ranks.shutdown()


def _silent(batch: StepBatch) -> StepBatch:
    """The step for a rank that chooses nothing."""
    return replace(batch, sampling=None, want_logits=False, logits_places=None)


class RankAdapters:
    """Loaded on any thread, one after the other; dropped and looked up by the executor's thread."""

    def __init__(self, ranks: RankProcesses) -> None:
        self._ranks = ranks
        self._loaded: dict[str, NamedAdapter] = {}

    def load(self, path: str, name: str) -> dict[str, Any]:
        """Loads an adapter on all ranks, or on none. Raises what a rank raises, and ConfigError if
        the ranks find different files."""

        def load_one(rank: int) -> dict[str, Any] | Exception:
            try:
                found: dict[str, Any] = self._ranks.call_at_once(rank, "load_adapter", path, name)
            except Exception as error:
                return error
            return found

        numbers = range(len(self._ranks.ranks))
        with ThreadPoolExecutor(len(numbers), "quire-adapters") as threads:
            results = list(threads.map(load_one, numbers))
        loaded = {rank: one for rank, one in enumerate(results) if isinstance(one, dict)}
        digests = {found["digest"] for found in loaded.values()}
        error = next((one for one in results if isinstance(one, Exception)), None)
        if error is None and len(digests) > 1:
            error = ConfigError(f"{path} must have the same adapter on the machines of all ranks")
        if error is not None:
            for rank, found in loaded.items():
                if found["digest"] not in self._loaded:
                    self._ranks.call_at_once(rank, "drop_adapter", found["digest"])
            raise error
        [digest] = digests
        num_bytes = sum(found["num_bytes"] for found in loaded.values())
        self._loaded[digest] = NamedAdapter(digest, num_bytes)
        return {**loaded[0], "num_bytes": num_bytes}

    def drop(self, digest: str) -> None:
        """Drops an adapter, which no request uses, after the steps that were begun."""
        if self._loaded.pop(digest, None) is not None:
            self._ranks.receive(self._ranks.send("drop_adapter", [digest]))

    def get(self, digest: str) -> LoadedAdapter | None:
        """The adapter as steps name it; None for "". Raises IntegrityError if it is not loaded."""
        return loaded_adapter(self._loaded, digest)
