"""`LogitsProcessor`: the base class for users' processors, and the description of batch changes.

Legend: N requests for which a token is sampled in the step, V vocabulary. Request i of the batch is
row i of the logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from quire.errors import QuireError, RequestError
from quire.params import SamplingParams
from quire.system.deferred_signals import raise_ctrl_c

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from quire.config.records import EngineConfig


class MoveDirectionality(Enum):
    """Direction of a change between two positions of the batch."""

    UNIDIRECTIONAL = auto()
    """The request of the first position moves to the second one."""
    SWAP = auto()
    """The two positions exchange their requests. Quire never uses this."""


RemovedRequest = int
"""The position of a request that left the batch."""
AddedRequest = tuple[int, SamplingParams, list[int] | None, list[int]]
"""Position, parameters, prompt tokens, and generated tokens: a list that grows, so that it contains
all generated tokens at every step."""
MovedRequest = tuple[int, int, MoveDirectionality]


@dataclass(frozen=True)
class BatchUpdate:
    """The differences from the previous step's batch, to be applied in this order: removed, added,
    moved. An added or moved request may take the position of a removed one."""

    batch_size: int
    """N"""
    removed: Sequence[RemovedRequest]
    """Removed requests whose positions were not reused, in descending order."""
    added: Sequence[AddedRequest]
    moved: Sequence[MovedRequest]


class LogitsProcessor(ABC):
    """Changes the logits of a step. Used by one thread.

    The state for a request must depend only on its data in `added`: a request may be removed and
    added again with the tokens generated so far.
    """

    @classmethod  # noqa: B027 (most have no parameters)
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raises ValueError for unsupported parameters: the request is rejected with that message.
        Called in the front end's process."""

    @abstractmethod
    def __init__(self, vllm_config: EngineConfig, device: str, is_pin_memory: bool) -> None:
        """Called before the model is loaded, and again after `apply` or `update_state` failed.
        `device` is "cpu" and `is_pin_memory` is False."""

    @abstractmethod
    def apply(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the changed logits [N, V]: the same array, which may be modified, or another one
        of this shape and type."""

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Whether the processor never changes which token has the largest logit. Such a processor
        gets logits after penalties and temperature. It does not affect greedy requests, and is not
        called for batches that contain only greedy requests. Called once."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Called before each step that samples tokens; None: the batch has not changed."""


class RowsError(QuireError):
    """Raised by a processor for requests that failed, after it has processed all others."""

    def __init__(
        self, errors: Mapping[int, BaseException], logits: NDArray[np.float32] | None = None
    ) -> None:
        """`errors`: by position in the batch. `logits` [N, V]: valid except for the failed rows."""
        super().__init__("; ".join(f"request {place}: {e!r}" for place, e in errors.items()))
        self.errors = errors
        self.logits = logits


def class_name(cls: type[Any]) -> str:
    """The name of a class as users write it: `module:Class`."""
    return f"{cls.__module__}:{cls.__qualname__}"


def check_processor(processor: type[LogitsProcessor], params: SamplingParams) -> None:
    """Raises RequestError if a logits processor rejects the parameters. A ValueError of the
    processor provides the message."""
    try:
        processor.validate_params(params)
    except RequestError:
        raise
    except ValueError as error:
        raise RequestError(str(error)) from error
    except BaseException as error:
        raise_ctrl_c(error)
        text = f"{type(error).__name__}: {error}"
        message = f"logits processor {class_name(processor)} refuses the parameters: {text}"
        raise RequestError(message) from error
