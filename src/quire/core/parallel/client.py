"""`ParallelClient`: several engine processes of this machine as one engine (`data_parallel_size`).

Each engine has its share of the threads and of the memory. If an engine that dies may be started
again, the others go on meanwhile; otherwise the whole client is dead, as vLLM's is.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import replace
from functools import partial

from quire.config import EngineConfig
from quire.core.client import EngineListener
from quire.core.parallel.group import EngineGroup
from quire.core.parallel.restarts import Restarts
from quire.core.process_host import ProcessHost
from quire.errors import EngineDeadError
from quire.log import get_logger

logger = get_logger(__name__)


class ParallelClient(EngineGroup):
    """Owns a `ProcessHost` for each engine."""

    _hosts: dict[int, ProcessHost]  # type: ignore[assignment]

    def __init__(self, config: EngineConfig, step_timeout_s: float, max_restarts: int = 0) -> None:
        """`max_restarts`: of each engine within ten minutes."""
        super().__init__(config)
        self._start = partial(_start, config, step_timeout_s)
        self._hosts = dict(enumerate(_start_all(self._start, config.parallel.data_parallel_size)))
        self._restarts = Restarts(max_restarts)
        self._ending = threading.Event()
        self._hosts_lock = threading.Lock()
        self.num_restarts = 0
        for number in self._hosts:
            self._bring_in(number)

    @property
    def pids(self) -> list[int]:
        """Process ids of the engines."""
        return [host.pid for host in self._hosts.values()]

    def attach(self, loop: asyncio.AbstractEventLoop, listener: EngineListener) -> None:
        super().attach(loop, listener)
        for number in self._hosts:
            self._attach(number, loop)

    def _attach(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        host = self._hosts[number]
        on_outputs = partial(self._on_outputs, number)
        host.attach(loop, EngineListener(on_outputs, partial(self._on_dead, number, host)))

    @property
    def _replaces_dead(self) -> bool:
        return self._restarts.limit > 0

    def shutdown(self, timeout_s: float | None = None) -> None:
        self._ending.set()
        with self._hosts_lock:
            hosts = list(self._hosts.values())
        for host in hosts:
            host.shutdown(timeout_s)
        self._mark_shut_down()

    def abandon(self) -> None:
        self._ending.set()
        for host in self._hosts.values():
            host.abandon()

    def _on_dead(self, number: int, host: ProcessHost, error: EngineDeadError) -> None:
        if self._dead_cause is not None or host is not self._hosts[number]:
            return
        cause = f"{self._name(number)}: {error}"
        pause_s = self._restarts.pause_after_death(number)
        if pause_s is not None and (method := self._carried.replaced_by) is not None:
            cause += f"; it cannot be started again, because {method} may have replaced weights"
            pause_s = None
        if pause_s is None:
            self._dead_cause = cause
            self._report_death(cause)
            return
        logger.error("%s; it is started again in %.1f s", cause, pause_s)
        self._down[number] = cause
        self._lose(number, cause)
        threading.Thread(
            target=self._start_again, args=(number, pause_s), name="quire-restart", daemon=True
        ).start()

    def _start_again(self, number: int, pause_s: float) -> None:
        """Body of the thread that replaces an engine."""
        dead = self._hosts[number]
        dead.shutdown()
        if self._ending.wait(pause_s):
            return
        try:
            host = self._start(number, self._ending)
        except BaseException as error:
            if not self._ending.is_set():
                text = f"it could not be started again: {error}"
                self._post(self._on_dead, number, dead, EngineDeadError(text))
            return
        with self._hosts_lock:
            if not self._ending.is_set():
                self._hosts[number] = host
                self._post(self._on_started_again, number)
                return
        host.shutdown()

    def _on_started_again(self, number: int) -> None:
        if self._loop is not None:
            self._attach(number, self._loop)
        self._bring_in(number)
        self.num_restarts += 1
        logger.info("%s works again", self._name(number))


def _start(
    config: EngineConfig, step_timeout_s: float, number: int, given_up: threading.Event
) -> ProcessHost:
    return ProcessHost(_of_engine(config, number), step_timeout_s, given_up=given_up)


def _start_all(
    start: Callable[[int, threading.Event], ProcessHost], count: int
) -> list[ProcessHost]:
    """Starts all engines at once. Raises what prevented one of them, after ending the others."""
    given_up = threading.Event()
    starting = list[Future[ProcessHost]]()
    with ThreadPoolExecutor(count, "quire-start") as threads:
        try:
            for number in range(count):
                starting.append(threads.submit(start, number, given_up))
            ended = (one.exception() for one in as_completed(starting))
            first = next((error for error in ended if error is not None), None)
        except BaseException as error:  # such as Ctrl+C
            first = error
        if first is not None:
            given_up.set()
    if first is None:
        return [one.result() for one in starting]
    for one in starting:
        if one.exception() is None:
            one.result().shutdown()
    raise first


def _of_engine(config: EngineConfig, number: int) -> EngineConfig:
    """The configuration of one engine: its number, its endpoints of KV events, its first GPU, and
    its share of the cores that were named."""
    device, count = config.device, config.parallel.data_parallel_size
    cores = device.cores
    events = None if config.kv_events is None else config.kv_events.of_rank(number)
    parallel = replace(config.parallel, data_parallel_rank=number)
    if cores is not None and len(cores) >= count:
        first, last = (len(cores) * part // count for part in (number, number + 1))
        cores = cores[first:last]
    gpu = device.gpu_index + number * parallel.world_size
    device = replace(device, cores=cores, gpu_index=gpu)
    return replace(config, parallel=parallel, kv_events=events, device=device)
