"""`GuardedProcessor`: runs one logits processor and ends only the requests for which it fails.

A `RowsError` names the failed requests. After any other error of `update_state` or `apply`, a new
processor is created for each request and runs on it alone: requests for which it fails again end,
the others get their rows from it. From the next step on, a new processor has the whole batch. State
of a processor that does not come from `added` is lost then.

A processor gets tensors if a module of its class or base classes imports something from torch, like
processors written for vLLM. A tensor shares its memory with the array. This module does not import
torch: the processor's module has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.config.records import EngineConfig
from quire.errors import ConfigError
from quire.log import get_logger
from quire.logits_processors import AdapterLogitsProcessor, BatchUpdate, LogitsProcessor, RowsError
from quire.logits_processors.interface import class_name
from quire.sampling.reference import not_finite
from quire.system.deferred_signals import raise_ctrl_c
from quire.worker.processors.members import Members

logger = get_logger(__name__)

Logits = NDArray[np.float32]


class GuardedProcessor:
    """Owned by the worker's thread."""

    def __init__(self, cls: type[LogitsProcessor], config: EngineConfig) -> None:
        """Raises ConfigError if the processor cannot be created."""
        self.name = class_name(cls)
        self._takes_tensors = takes_tensors(cls)
        device = device_for(cls)
        self._make: Callable[[], LogitsProcessor] = lambda: cls(config, device, False)
        try:
            self._processor = self._make()
            self.is_argmax_invariant = bool(self._processor.is_argmax_invariant())
        except BaseException as error:
            raise_ctrl_c(error)
            raise ConfigError(
                f"logits processor {self.name} cannot be created: {_text(error)}"
            ) from error
        self._lost: BaseException | None = None
        """Error after which the state of the processor is unusable."""
        self._of_update: dict[int, str] = {}
        """Errors of requests in `update_state`, by their place in the batch."""

    @property
    def is_idle(self) -> bool:
        """Whether it certainly changes no logits."""
        processor = self._processor
        return (
            isinstance(processor, AdapterLogitsProcessor)
            and type(processor).apply is AdapterLogitsProcessor.apply
            and not (processor.req_info or self._of_update or self._lost)
        )

    def update(self, update: BatchUpdate | None, members: Members) -> None:
        """Passes an update of the batch to the processor. `members`: the batch after it."""
        self._of_update = {}
        try:
            if self._lost is not None:
                self._processor, update = self._make(), members.all_added()
                self._lost = None
            self._processor.update_state(update)
        except RowsError as error:
            self._of_update = self._messages(error)
        except BaseException as error:
            raise_ctrl_c(error)
            self._lost = error

    def apply(self, logits: Logits, members: Members) -> tuple[Logits, dict[int, str]]:
        """The changed logits [N, V], and the errors of failed requests by place, whose rows are not
        changed. `logits` may be written to."""
        before, failures = logits.copy(), dict(self._of_update)
        if self._lost is None:
            try:
                logits = self._applied(self._processor, logits, before)
            except RowsError as error:
                failures.update(self._messages(error))
                logits = before.copy() if error.logits is None else _checked(error.logits, before)
            except BaseException as error:
                raise_ctrl_c(error)
                self._lost = error
        if self._lost is not None:
            logits = self._one_by_one(before, members, failures)
        for place in np.flatnonzero(not_finite(logits)).tolist():
            failures.setdefault(place, f"{self._failed()} it left {_defect(logits[place])}")
        for place in failures:
            logits[place] = before[place]
        return logits, failures

    def _applied(self, processor: LogitsProcessor, logits: Logits, before: Logits) -> Logits:
        return _checked(
            processor.apply(tensor_of(logits) if self._takes_tensors else logits), before
        )

    def _one_by_one(self, before: Logits, members: Members, failures: dict[int, str]) -> Logits:
        logger.warning("%s %s", self._failed(), _text(self._lost), exc_info=self._lost)
        changed: Logits = before.copy()
        for place, member in enumerate(members.batch):
            row = before[place : place + 1]
            try:
                alone = self._make()
                alone.update_state(BatchUpdate(1, (), [member.added_at(0)], ()))
                changed[place : place + 1] = self._applied(alone, row.copy(), row)
            except RowsError as error:
                failures[place] = next(iter(self._messages(error).values()), self._failed())
            except BaseException as error:
                raise_ctrl_c(error)
                failures[place] = f"{self._failed()} {_text(error)}"
        return changed

    def _messages(self, error: RowsError) -> dict[int, str]:
        for one in error.errors.values():
            logger.warning("%s %s", self._failed(), _text(one), exc_info=one)
        return {place: f"{self._failed()} {_text(one)}" for place, one in error.errors.items()}

    def _failed(self) -> str:
        return f"logits processor {self.name} failed:"


def _checked(changed: Any, before: Logits) -> Logits:
    """The result of `apply`. Raises TypeError unless it has the shape and type of `before`."""
    changed = array_of(changed)
    if not isinstance(changed, np.ndarray):
        raise TypeError(f"apply returned {type(changed).__name__}; it must return the logits")
    if changed.shape != before.shape or changed.dtype != before.dtype:
        what = f"{changed.dtype} {list(changed.shape)}"
        raise TypeError(f"apply returned {what} for logits of float32 {list(before.shape)}")
    logits: Logits = changed if changed.flags.writeable else changed.copy()
    return logits


def _defect(row: Logits) -> str:
    if np.isnan(row).any():
        return "a logit that is NaN"
    return "an infinite logit" if row.max() > 0 else "no token to sample: all logits are -inf"


def _text(error: BaseException | None) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # of a user's own `__str__`
        return type(error).__name__


def takes_tensors(cls: type[Any]) -> bool:
    """Whether one of its modules uses torch."""
    modules = (sys.modules.get(one.__module__) for one in cls.__mro__)
    return any(_is_of_torch(value) for module in modules for value in vars(module or cls).values())


def device_for(cls: type[Any]) -> Any:
    """The device argument for a processor's constructor."""
    return sys.modules["torch"].device("cpu") if takes_tensors(cls) else "cpu"


def tensor_of(logits: Logits) -> Any:
    """A tensor that shares the memory of the array."""
    return sys.modules["torch"].from_numpy(logits)


def array_of(logits: Any) -> Any:
    """The array of a tensor, sharing its memory; other values are returned unchanged."""
    return logits.detach().numpy() if _is_of_torch(logits) else logits


def _is_of_torch(value: object) -> bool:
    home = value.__name__ if isinstance(value, ModuleType) else type(value).__module__
    if isinstance(value, type):
        home = value.__module__
    return isinstance(home, str) and home.partition(".")[0] == "torch"
