"""The contract between `EngineCore` and its workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.errors import BackendError
from quire.protocol import SchedulePlan, StepResult


class Executor(ABC):
    """Runs plans on one worker or many, in the order in which they are submitted.

    Constructing one loads the model. One caller at a time.
    """

    max_plans_in_flight: int = 1
    """Most plans that may be submitted and not collected."""
    num_ranks: int = 1
    """Workers that compute a plan together, each its own part of the model and of the K/V."""

    @abstractmethod
    def submit(self, plan: SchedulePlan) -> None:
        """Hands a plan with requests over; may return before it is computed. Whatever goes wrong
        with it, `collect` says so."""

    @abstractmethod
    def collect(self) -> StepResult:
        """The result of the oldest plan that was submitted and not collected; waits for it.

        Raises BackendError if the computation failed: then the plan's changes to requests are
        applied, its requests hold nothing of use, and further plans may be submitted.
        """

    def read_blocks(
        self, block_ids: Sequence[int], group: int, num_tokens: int, out: memoryview
    ) -> None:
        """Copies the first tokens of KV blocks of a layer group out of the pool of every rank:
        each block has a part for each rank, in their order, all of one size, so that blocks can be
        taken out of `out`. Any thread, also while a
        step computes that does not write to these tokens. Raises ValueError for a wrong size,
        BackendError for an unknown group, and where there are no blocks."""
        del block_ids, group, num_tokens, out
        raise BackendError("this executor has no KV blocks")

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        """Copies what `read_blocks` gave into blocks that no step uses: to each rank its own part.
        Any thread. Raises as `read_blocks` does."""
        del block_ids, data
        raise BackendError("this executor has no KV blocks")

    @abstractmethod
    def call(self, method: str | Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Runs a public method of `Worker`, or a function that takes the worker first, on every
        worker, between two plans; the results in the order of the workers. Raises ConfigError for
        a method that there is not, and what the method raises."""

    def failure(self) -> str | None:
        """Why no plan can be computed any more, in a line; None while the workers are well. Any
        thread may ask."""
        return None

    def progress(self) -> int | None:
        """A number that changes while a step advances; None if it is not counted. Any thread."""
        return None

    @property
    def has_new_weights(self) -> bool:
        """Whether workers were given weights that they load when `take_new_weights` is called."""
        return False

    @abstractmethod
    def shutdown(self) -> None:
        """Frees everything. Idempotent."""


def part_of_rank(
    buffer: memoryview, num_blocks: int, rank: int, num_ranks: int
) -> NDArray[np.uint8]:
    """What a rank has in a buffer of `read_blocks`: a view [num_blocks, bytes of its part]. Raises
    ValueError if the blocks do not divide into parts of one size."""
    if buffer.nbytes % max(1, num_blocks * num_ranks):
        raise ValueError(
            f"{buffer.nbytes} bytes do not divide into {num_blocks} blocks with a part for each "
            f"of {num_ranks} ranks"
        )
    return np.frombuffer(buffer, np.uint8).reshape(num_blocks, num_ranks, -1)[:, rank]
