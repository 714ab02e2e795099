"""`UniProcExecutor`: runs one worker in this process, on the caller's thread; `Turns`: lets several
such processes use the same cores one after the other."""

from __future__ import annotations

import fcntl
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from quire.config.records import EngineConfig
from quire.errors import BackendError
from quire.executor.base import Executor
from quire.executor.runners import make_runner, may_begin_ahead
from quire.protocol import SchedulePlan, StepResult
from quire.worker.extension import worker_class
from quire.worker.model_runner import BegunStep
from quire.worker.prompt_adapters import PromptAdapters
from quire.worker.worker import Worker

_QUEUE, _TURN = "queue", "turn"


class Turns:
    """One process's part in the turns of all that name the same directory.

    The processes of a server with several models each compute with all cores. Two steps at once
    would take twice as long each, so a step waits for its turn. Made of two file locks, which the
    kernel releases when a process ends.
    A context manager: the body runs while no other process is in its own. Who waits for the turn
    holds the queue, so a process that has had its turn cannot take the next one before it.
    One thread at a time.
    """

    def __init__(self, directory: str | Path) -> None:
        """`directory` must exist; files for the locks are created in it."""
        self.is_waiting = False
        """Whether another process has the turn that this one waits for. Any thread may read it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._queue, self._turn = (
            os.open(Path(directory) / name, flags, 0o600) for name in (_QUEUE, _TURN)
        )

    def __enter__(self) -> None:
        self.is_waiting = True
        try:
            fcntl.flock(self._queue, fcntl.LOCK_EX)
            try:
                fcntl.flock(self._turn, fcntl.LOCK_EX)
            finally:
                fcntl.flock(self._queue, fcntl.LOCK_UN)
        finally:
            self.is_waiting = False

    def __exit__(self, *raised: object) -> None:
        fcntl.flock(self._turn, fcntl.LOCK_UN)

    def close(self) -> None:
        """Gives up the locks. Idempotent."""
        for fd in (self._queue, self._turn):
            if fd >= 0:
                os.close(fd)
        self._queue = self._turn = -1


class UniProcExecutor(Executor):
    """Computes a plan by a function call when it is collected; nothing is copied or sent.

    Where the model keeps sampled tokens, a plan is begun when it is submitted, and the next one
    before it is collected.
    """

    def __init__(self, config: EngineConfig) -> None:
        turns = config.device.turns
        self._turns = None if turns is None else Turns(turns)
        self._turn: AbstractContextManager[None] = self._turns or nullcontext()
        self._worker = worker_class(config, Worker)(config)
        self.prompt_adapters = PromptAdapters(config)
        self._begins_at_once = self._worker.model.keeps_tokens and may_begin_ahead(config)
        if self._begins_at_once:
            self.max_plans_in_flight = 2
        self._runner = make_runner(
            config,
            self._worker.model,
            self._worker.adapters.get,
            self.prompt_adapters.find,
            keeps_tokens=self._begins_at_once,
        )
        self._submitted: deque[SchedulePlan] = deque()
        self._begun: deque[tuple[BegunStep, Any] | BackendError] = deque()

    def submit(self, plan: SchedulePlan) -> None:
        if not self._begins_at_once:
            self._submitted.append(plan)
            return
        self._runner.model = self._worker.model
        try:
            begun = self._runner.begin(plan)
            self._begun.append((begun, self._worker.submit(begun.batch)))
        except BackendError as error:
            self._begun.append(error)

    def collect(self) -> StepResult:
        if self._begins_at_once:
            first = self._begun.popleft()
            if isinstance(first, BackendError):
                raise first
            step, work = first
            return self._runner.finish(step, self._worker.collect(work))
        self._runner.model = self._worker.model  # other weights are another model
        begun = self._runner.begin(self._submitted.popleft())
        with self._turn:
            self.began_at = time.perf_counter()
            computed = self._worker.step(begun.batch)
        return self._runner.finish(begun, computed)

    def read_blocks(self, block_ids: Sequence[int], group: int, kept: int, out: memoryview) -> None:
        self._worker.read_blocks(block_ids, group, kept, out)

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        self._worker.write_blocks(block_ids, data)

    def load_adapter(self, path: str, name: str) -> dict[str, Any]:
        return self._worker.load_adapter(path, name)

    def drop_adapter(self, digest: str) -> None:
        self._worker.drop_adapter(digest)

    def call(self, method: str | Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        return [self._worker.call(method, *args, **kwargs)]

    @property
    def driver_worker(self) -> Worker:
        """The worker."""
        return self._worker

    @property
    def has_new_weights(self) -> bool:
        return self._worker.has_new_weights

    def progress(self) -> int | None:
        if self._turns is not None and self._turns.is_waiting:
            return -time.monotonic_ns()  # another engine computes; its own watch looks after it
        return self._worker.progress()

    def shutdown(self) -> None:
        self._worker.close()
        if self._turns is not None:
            self._turns.close()
