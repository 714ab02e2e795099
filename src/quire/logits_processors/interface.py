"""`LogitsProcessor`: what a user subclasses, and what it is told of the batch.

Legend: N requests of which a token is chosen in the step, V vocabulary. Request i of the batch is
row i of the logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from quire.errors import QuireError
from quire.params import SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from quire.config.records import EngineConfig


class MoveDirectionality(Enum):
    """How two places of the batch change."""

    UNIDIRECTIONAL = auto()
    """The request of the first place goes to the second one."""
    SWAP = auto()
    """Both exchange their requests. Quire never does it."""


RemovedRequest = int
"""The place of a request that has left."""
AddedRequest = tuple[int, SamplingParams, list[int] | None, list[int]]
"""Place, parameters, prompt tokens, and the tokens generated so far: a list that grows, so that it
holds all of them at every step."""
MovedRequest = tuple[int, int, MoveDirectionality]


@dataclass(frozen=True)
class BatchUpdate:
    """How the batch differs from that of the step before, to be taken in this order: removed,
    added, moved. A request that is added or moved may take the place of one that has left."""

    batch_size: int
    """N"""
    removed: Sequence[RemovedRequest]
    """Those whose places nobody has taken, in descending order."""
    added: Sequence[AddedRequest]
    moved: Sequence[MovedRequest]


class LogitsProcessor(ABC):
    """Changes the logits of a step. Used by one thread.

    What it knows of a request has to follow from what `added` says of it: a request may be removed
    and added again, with the tokens that it has by then.
    """

    @classmethod  # noqa: B027 (most have no parameters)
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raises ValueError for parameters that it cannot work with: the request is refused, with
        that message. Called in the process of the front end."""

    @abstractmethod
    def __init__(self, vllm_config: EngineConfig, device: str, is_pin_memory: bool) -> None:
        """Called before the model is loaded, and after a failure of `apply` or `update_state`.
        `device` is "cpu", `is_pin_memory` False."""

    @abstractmethod
    def apply(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """The logits [N, V] after the change: the same array, which may be written to, or another
        one of this shape and type."""

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Whether it never changes which token has the largest logit. Such a processor sees logits
        after penalties, divided by the temperature; what it does to greedy requests has no effect,
        and a batch of these alone is not shown to it. Asked once."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Called before each step that chooses tokens; None: the batch is that of the last one."""


class RowsError(QuireError):
    """Raised by a processor that knows which requests it failed for, when it has done its work for
    all others."""

    def __init__(
        self, errors: Mapping[int, Exception], logits: NDArray[np.float32] | None = None
    ) -> None:
        """`errors`: by place in the batch. `logits` [N, V]: right but for the rows of those."""
        super().__init__("; ".join(f"request {place}: {e!r}" for place, e in errors.items()))
        self.errors = errors
        self.logits = logits


def class_name(cls: type[Any]) -> str:
    """As users write it: `module:Class`."""
    return f"{cls.__module__}:{cls.__qualname__}"
