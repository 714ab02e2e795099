"""`Worker`: the engine's part on one device. It runs steps on the model that it has loaded.

Created and called by an executor, in any process. Builds everything from the `EngineConfig`, so
that only messages have to be sent to it.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.records import StepBatch, StepOutput
from quire.config.ranks import ONE_RANK, Rank
from quire.config.records import EngineConfig
from quire.errors import ConfigError, quoted
from quire.program import OpPlace
from quire.ranks import RankGroup
from quire.worker.loaded_model import LoadedModel
from quire.worker.rank_kv import own_kv


class Worker(LoadedModel):
    """Owns the compiled model and its KV cache. One thread at a time, except for `read_blocks` and
    `write_blocks`."""

    def __init__(
        self, config: EngineConfig, rank: Rank = ONE_RANK, group: RankGroup | None = None
    ) -> None:
        """`group`: the other ranks, if there are any."""
        super().__init__(config, rank, group)
        self._spans: list[tuple[float, float, float]] | None = None
        """Times of steps; None: they are not recorded."""
        self._begun: dict[int, tuple[float, Any]] = {}
        """The steps of `begin_step`, with the time of each, by number."""
        self._num_begun = 0
        self._ended_at = 0.0

    def step(self, batch: StepBatch) -> StepOutput:
        """Runs one step. Raises BackendError if the backend fails, and CheckpointError in any case
        if the file of the weights has changed since it was loaded."""
        spans, begin, waited_s = self._spans, time.perf_counter(), self._waited_s()
        try:
            return self.model.step(batch if self._is_alone else self._own(batch))
        finally:
            if spans is not None:
                spans.append((begin, time.perf_counter(), self._waited_s() - waited_s))
            self.check_health()

    def submit(self, batch: StepBatch) -> Any:
        """Begins a step; `collect` takes the result. Raises BackendError."""
        return self.model.submit(batch if self._is_alone else self._own(batch))

    def collect(self, begun: Any) -> StepOutput:
        """The output of a step that was begun. Raises the same as `step`."""
        try:
            return self.model.collect(begun)
        finally:
            self.check_health()

    def begin_step(self, batch: StepBatch) -> int:
        """`submit` for an executor in another process; a number for `end_step`, which is the same
        on all ranks."""
        self._num_begun += 1
        number, begin = self._num_begun, time.perf_counter()
        self._begun[number] = (begin, self.submit(batch))
        return number

    def end_step(self, number: int) -> StepOutput:
        """The output of this step. Earlier ones that were not collected are forgotten. Raises the
        same as `step`."""
        begin, begun = self._begun.pop(number)
        self._begun = {later: one for later, one in self._begun.items() if later > number}
        try:
            return self.collect(begun)
        finally:
            begin, self._ended_at = max(begin, self._ended_at), time.perf_counter()
            if self._spans is not None:
                self._spans.append((begin, self._ended_at, 0.0))

    def record_steps(self, is_on: bool) -> dict[str, Any]:
        """Begin to record the times of steps, or end it. Returns what was recorded, as `RankSpans`
        of the profiler."""
        spans, self._spans = self._spans or [], [] if is_on else None
        return {
            "name": str(self.rank),
            "pid": os.getpid(),
            "epoch": time.time() - time.perf_counter(),
            "spans": spans,
        }

    def _waited_s(self) -> float:
        return 0.0 if self._spans is None else sum(one.waited_s() for one in self._groups)

    def call(self, method: str | Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a public method by name, or a function with the worker as its first argument.

        Raises ConfigError for an unknown method, and for arguments that it does not accept.
        """
        if callable(method):
            return method(self, *args, **kwargs)
        found = None if method.startswith("_") else getattr(self, method, None)
        if not callable(found):
            own = [name for name in dir(Worker) if not name.startswith("_")]
            names = [name for name in own if callable(getattr(Worker, name))]
            raise ConfigError(
                f"a worker has no method {quoted(method)}; it has {', '.join(sorted(names))}"
            )
        try:
            inspect.signature(found).bind(*args, **kwargs)
        except TypeError as error:
            raise ConfigError(
                f"{method}{inspect.signature(found)} does not accept these arguments: {error}"
            ) from None
        return found(*args, **kwargs)

    def find_not_finite(self, batch: StepBatch) -> list[OpPlace | None]:
        """Find the ops with results that are not finite, by the model's own method."""
        return self.model.find_not_finite(batch if self._is_alone else self._own(batch))

    def _own(self, batch: StepBatch) -> StepBatch:
        """The step with this rank's adapters and its part of given K and V, of several ranks."""
        return own_kv(self.adapters.found(batch), self._kv_runs)

    def rank_stats(self) -> dict[str, Any]:
        """Numbers of this rank, and the time for which it has waited for others."""
        parallel = self._config.parallel
        return {
            "engine": parallel.data_parallel_rank,
            "rank": self.rank.number,
            "stage": self.rank.stage,
            "part": self.rank.tensor,
            "pid": os.getpid(),
            "node": parallel.node_of(self.rank),
            "waited_s": sum((one.waited_s() for one in self._groups), 0.0),
            "received_bytes": sum(one.num_bytes for one in self._groups),
        }

    def read_blocks(self, block_ids: Sequence[int], group: int, kept: int, out: memoryview) -> None:
        """Read this rank's part of blocks for `Executor.read_blocks`. Any thread."""
        groups = self._config.cache.layout.groups
        is_state = 0 <= group < len(groups) and not groups[group].is_by_position
        data = np.frombuffer(out, np.uint8).reshape(len(block_ids), -1)
        own = self._own_part(data)
        self.model.read_blocks(np.array(block_ids, np.int32), own)
        for number, block in enumerate(own):
            self.model.clear_behind(block, group, kept + number if is_state else kept)
        if own is not data:
            data[:, : own.shape[1]] = own
            data[:, own.shape[1] :] = 0

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        """Copies data from `read_blocks` into these blocks. Any thread, also while a step uses
        other blocks. Raises ValueError for a wrong size."""
        blocks = np.frombuffer(data, np.uint8).reshape(len(block_ids), -1)
        own = self._own_part(blocks)
        if own is not blocks:
            own[:] = blocks[:, : own.shape[1]]
        self.model.write_blocks(np.array(block_ids, np.int32), own)

    def _own_part(self, blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The blocks, or room for them where another rank has more heads and so larger blocks."""
        if self._is_alone or blocks.shape[1] <= self._block_bytes:
            return blocks
        return np.empty((len(blocks), self._block_bytes), np.uint8)

    def check_health(self) -> None:
        """Raises CheckpointError if the file of the weights has changed since it was loaded."""
        if self._packed is not None:
            self._packed.check()

    @property
    def has_new_weights(self) -> bool:
        """Whether there are new weights, which `take_new_weights` will load."""
        return self._weights.is_new

    def progress(self) -> int | None:
        """A number that changes while a step advances; None if it is not counted. Any thread."""
        return self.model.progress()
