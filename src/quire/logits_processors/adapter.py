"""`AdapterLogitsProcessor`: builds a logits processor from one callable per request."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from quire.logits_processors.interface import (
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
    RowsError,
)
from quire.params import SamplingParams
from quire.system.deferred_signals import raise_ctrl_c

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from quire.config.records import EngineConfig

T = TypeVar("T")

RequestLogitsProcessor = Callable[..., Any]
"""(output_token_ids, logits [V]) -> logits [V], or (prompt_token_ids, output_token_ids, logits)."""


class AdapterLogitsProcessor(LogitsProcessor):
    """Base class; subclasses define `is_argmax_invariant` and `new_req_logits_processor`.

    If a callable raises, only its own request ends.
    """

    def __init__(self, vllm_config: EngineConfig, device: str, is_pin_memory: bool) -> None:
        """Subclasses with their own constructor must call this one."""
        del vllm_config, device, is_pin_memory
        self.req_info: dict[int, Callable[..., Any]] = {}
        """By position in the batch: the callable with all arguments bound except the logits,
        including the growing list of output tokens."""

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """The callable for a request with these parameters; None: its logits stay unchanged."""

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Raises RowsError for requests whose callable cannot be created."""
        if batch_update is None:
            return

        def make(
            params: SamplingParams, prompt: list[int] | None, output: list[int]
        ) -> Callable[..., Any] | BaseException | None:
            try:
                return self._bound(params, prompt, output)
            except BaseException as error:
                raise_ctrl_c(error)
                return error

        found: dict[int, Callable[..., Any] | BaseException] = {**self.req_info}
        process_dict_updates(found, batch_update, make)
        failed = {place: one for place, one in found.items() if isinstance(one, BaseException)}
        self.req_info = {
            place: one for place, one in found.items() if not isinstance(one, BaseException)
        }
        if failed:
            raise RowsError(failed)

    def apply(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Change the rows in place. Raises RowsError for requests whose callable fails."""
        errors: dict[int, BaseException] = {}
        for place, process in self.req_info.items():
            row = logits[place]
            try:
                changed = process(row)
                if changed is not row:
                    _check_row(changed, row)
                    logits[place] = changed
            except BaseException as error:
                raise_ctrl_c(error)
                errors[place] = error
        if errors:
            raise RowsError(errors, logits)
        return logits

    def _bound(
        self, params: SamplingParams, prompt: list[int] | None, output: list[int]
    ) -> Callable[..., Any] | None:
        process = self.new_req_logits_processor(params)
        if process is None:
            return None
        if len(inspect.signature(process).parameters) == 3:
            return partial(process, prompt, output)
        return partial(process, output)


def process_dict_updates(
    req_entries: dict[int, T],
    batch_update: BatchUpdate | None,
    new_state: Callable[[SamplingParams, list[int] | None, list[int]], T | None],
) -> bool:
    """Update a dict keyed by position in the batch; returns whether it changed.

    `new_state` creates a request's entry from its parameters, prompt tokens and output tokens;
    None: the request has no entry.
    """
    if batch_update is None:
        return False
    has_changed = False
    for place in batch_update.removed:
        has_changed |= req_entries.pop(place, None) is not None
    for place, params, prompt, output in batch_update.added:
        had_one = req_entries.pop(place, None) is not None
        entry = new_state(params, prompt, output)
        if entry is not None:
            req_entries[place] = entry
        has_changed |= had_one or entry is not None
    for first, second, direction in batch_update.moved:
        of_first, of_second = req_entries.pop(first, None), req_entries.pop(second, None)
        if of_first is not None:
            req_entries[second] = of_first
        if of_second is not None and direction is MoveDirectionality.SWAP:
            req_entries[first] = of_second
        has_changed |= of_first is not None or of_second is not None
    return has_changed


def _check_row(changed: Any, row: NDArray[np.float32]) -> None:
    """Raises TypeError unless `changed` has the row's shape and type."""
    shape, dtype = getattr(changed, "shape", None), getattr(changed, "dtype", None)
    if shape != row.shape or dtype != row.dtype:
        what = type(changed).__name__ if shape is None else f"{dtype} {list(shape)}"
        raise TypeError(f"the callable must return float32 {list(row.shape)}, not {what}")
