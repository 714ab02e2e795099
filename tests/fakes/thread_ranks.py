"""The ranks of an engine as threads of this process, behind the methods of `RankProcesses`."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rank_threads import connected, results

from quire.config.ranks import Rank
from quire.config.records import EngineConfig
from quire.executor.messages import Call, from_plain, to_plain
from quire.executor.rank_main import call_at_once
from quire.executor.rank_processes import RankProcesses
from quire.worker.worker import Worker


@dataclass(slots=True)
class _Line:
    rank: Rank
    worker: Worker
    thread: ThreadPoolExecutor


class ThreadRanks(RankProcesses):
    """Every rank has a thread, so that stages compute different steps at once. Calls and answers
    are converted as on the way to a process."""

    def __init__(self, config: EngineConfig) -> None:
        self.has_new_weights = False
        parallel = config.parallel
        self._groups = connected(parallel.pipeline_parallel_size, parallel.tensor_parallel_size)
        num_stages = parallel.pipeline_parallel_size
        self._files = [os.memfd_create("ranks") for _ in range(2 * num_stages)]
        self.ranks: list[Any] = []
        for rank, group in zip(parallel.ranks, self._groups, strict=True):
            if config.device.backend == "cpu" and rank.tensor_size > 1:
                group.shared_fd = self._files[rank.stage]
                group.draft_fd = self._files[num_stages + rank.stage]
            thread = ThreadPoolExecutor(1)
            own = group if rank.world_size > 1 else None
            worker = thread.submit(Worker, config, rank, own).result()
            self.ranks.append(_Line(rank, worker, thread))
        self.keep_tokens = all(line.worker.model.keeps_tokens for line in self.ranks)
        self._number = 0
        self._futures: dict[int, tuple[list[Future[Any]], int | None]] = {}
        """The calls that are under way, by number, and the only one whose answer is wanted."""

    def send(
        self,
        method: str,
        args: list[Any] | Callable[[Rank], list[Any]],
        kwargs: dict[str, Any] | None = None,
        *,
        of_model: bool = False,
        only: int | None = None,
        answers: int | None = None,
    ) -> int:
        """As `RankProcesses.send`."""
        self._number += 1
        called: list[Future[Any]] = []
        for line in self.ranks if only is None else [self.ranks[only]]:
            own = args if isinstance(args, list) else args(line.rank)
            owner = line.worker.model if of_model else line.worker
            called.append(line.thread.submit(_run, owner, method, own, kwargs or {}))
        self._futures[self._number] = called, answers
        return self._number

    def receive(self, number: int) -> list[Any]:
        """As `RankProcesses.receive`."""
        called, answers = self._futures.pop(number)
        found = results(called, self._groups)
        return found if answers is None else [found[answers]]

    def call_at_once(self, rank: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """As `RankProcesses.call_at_once`."""
        return call_at_once(self.ranks[rank].worker, Call(0, method, list(args), kwargs))

    def failure(self) -> str | None:
        """No thread dies."""
        return None

    def progress(self) -> int:
        """Steps are not watched."""
        return 0

    def shutdown(self) -> None:
        """Frees everything. Idempotent."""
        for line in self.ranks:
            line.thread.submit(line.worker.close).result()
            line.thread.shutdown()
        self.ranks = []
        for group in self._groups:
            group.close()
        for file in self._files:
            os.close(file)
        self._files = []

    def abandon(self) -> None:
        """The threads end with the process."""


def _run(owner: Any, method: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return to_plain(getattr(owner, method)(*from_plain(args), **from_plain(kwargs)))
