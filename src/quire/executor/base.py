"""The interface between `EngineCore` and its workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quire.errors import BackendError
from quire.protocol import SchedulePlan, StepResult

if TYPE_CHECKING:
    from quire.worker.prompt_adapters import PromptAdapters


class Executor(ABC):
    """Runs plans on one or more workers, in the order in which they are submitted.

    The constructor loads the model. One caller at a time.
    """

    prompt_adapters: PromptAdapters | None = None
    """Prompt adapters, for executors that prepare steps."""
    max_plans_in_flight: int = 1
    """Maximum number of plans that are submitted and not collected."""
    num_ranks: int = 1
    """Number of workers that compute a plan together, each with its part of the model and K/V."""
    began_at: float = 0.0
    """When the computation of the plan that was collected last began (`time.perf_counter`), after
    the engine's turn had come; 0: when it was submitted."""

    @abstractmethod
    def submit(self, plan: SchedulePlan) -> None:
        """Submits a plan with requests; may return before it is computed. Errors of the computation
        are raised by `collect`."""

    @abstractmethod
    def collect(self) -> StepResult:
        """Waits for the result of the oldest plan that is not collected, and returns it.

        Raises BackendError if the computation failed: the plan's changes to requests are applied
        then, the state of its requests is unusable, and further plans may be submitted.
        """

    def read_blocks(self, block_ids: Sequence[int], group: int, kept: int, out: memoryview) -> None:
        """Copies blocks of a layer group out of the pool of every rank. Each block has a part for
        each rank, in their order, all of one size, so that blocks can be taken out of `out`. A
        block keeps its first `kept` tokens; blocks of a state, of which the first has the number
        `kept`, keep their pieces. The rest is zeros. Any thread, also while a step computes that
        does not write to what is kept. Raises ValueError for a wrong size, BackendError for an
        unknown group and for executors without KV blocks."""
        del block_ids, group, kept, out
        raise BackendError("this executor has no KV blocks")

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        """Copies data from `read_blocks` into blocks that no step uses; each rank gets its part.
        Any thread. Raises the same errors as `read_blocks`."""
        del block_ids, data
        raise BackendError("this executor has no KV blocks")

    def load_adapter(self, path: str, name: str) -> dict[str, Any]:
        """Loads the adapter in a folder: `digest`, `num_bytes` and a `description`. Any thread,
        also while a step computes. Raises CheckpointError for an adapter that does not fit, and
        BackendError for executors without adapters."""
        del path, name
        raise BackendError("this executor has no adapters")

    def drop_adapter(self, digest: str) -> None:
        """Drops an adapter, except for requests that the workers hold."""
        del digest

    def load_prompt_adapter(self, path: str, name: str) -> dict[str, Any]:
        """Loads the prompt adapter in a folder: see `PromptAdapters.load`. Any thread. Raises
        CheckpointError, and BackendError for executors without such adapters."""
        del name
        if self.prompt_adapters is None:
            raise BackendError("this executor has no prompt adapters")
        return self.prompt_adapters.load(path)

    def drop_prompt_adapter(self, digest: str) -> None:
        """Drops a prompt adapter, which no request uses."""
        if self.prompt_adapters is not None:
            self.prompt_adapters.drop(digest)

    @abstractmethod
    def call(self, method: str | Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Runs a public method of `Worker`, or a function that takes the worker first, on every
        worker, between two plans. Returns the results in the order of the workers. Raises
        ConfigError for an unknown method, and what the method raises."""

    def call_first(self, method: str, *args: Any) -> Any:
        """Runs a public method of the first worker alone, as `call` does. Returns the result."""
        [result, *_] = self.call(method, *args)
        return result

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """vLLM's name of `call`. `timeout` is ignored: a rank that stands still is noticed."""
        del timeout
        return self.call(method, *args, **(kwargs or {}))

    @abstractmethod
    def failure(self) -> str | None:
        """Why no further plan can be computed, in one line; None while all workers work. Any
        thread."""

    def progress(self) -> int | None:
        """A number that changes while a step advances; None if it is not counted. Any thread."""
        return None

    @property
    def has_new_weights(self) -> bool:
        """Whether workers have new weights, which `take_new_weights` will load."""
        return False

    @abstractmethod
    def shutdown(self) -> None:
        """Frees everything. Idempotent."""


def part_of_rank(
    buffer: memoryview, num_blocks: int, rank: int, num_ranks: int
) -> NDArray[np.uint8]:
    """Return the part of a rank in a buffer of `read_blocks`: a view [num_blocks, bytes of its
    part]. Raises ValueError if the blocks do not divide into parts of one size."""
    if buffer.nbytes % max(1, num_blocks * num_ranks):
        raise ValueError(
            f"{buffer.nbytes} bytes do not divide into {num_blocks} blocks with a part for each "
            f"of {num_ranks} ranks"
        )
    return np.frombuffer(buffer, np.uint8).reshape(num_blocks, num_ranks, -1)[:, rank]
