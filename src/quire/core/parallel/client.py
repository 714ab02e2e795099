"""`ParallelClient`: several engine processes with the same model, as one engine
(`data_parallel_size`).

Each engine has its own KV cache and its share of the threads and of the memory. `Placement`
chooses the engine of each request. The requests of an engine that dies end with the cause. If the
engine may be started again, the others go on meanwhile; otherwise the whole client is dead, as
vLLM's is.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from quire.config import EngineConfig
from quire.core.client import EngineCoreClient, EngineHealth, EngineListener
from quire.core.loop import AbortRequests, AddRequest, Call, Command
from quire.core.parallel.joining import join_answers, join_stats, join_stores
from quire.core.parallel.restarts import CarriedState, Restarts, replaces_weights
from quire.core.process_host import ProcessHost
from quire.errors import EngineDeadError
from quire.log import get_logger
from quire.placement import Placement
from quire.placement.policy import EngineLimits
from quire.protocol import EngineCoreOutputs, KVStoreStats, SchedulerStats

logger = get_logger(__name__)

_IDLE = SchedulerStats(num_running=0, num_waiting=0, kv_cache_usage=0.0)
_WORST = {"dead": 0, "stalled": 1, "alive": 2}


class ParallelClient(EngineCoreClient):
    """Owns a `ProcessHost` for each engine."""

    is_other_process = True

    def __init__(self, config: EngineConfig, step_timeout_s: float, max_restarts: int = 0) -> None:
        """`max_restarts`: of each engine within ten minutes."""
        super().__init__()
        self._start = partial(_start, config, step_timeout_s)
        self._hosts = _start_all(self._start, config.parallel.data_parallel_size)
        self._restarts = Restarts(max_restarts)
        self._carried = CarriedState()
        self._down: dict[int, str] = {}
        """Causes of death of engines that are being started again, by their numbers."""
        self._ending = threading.Event()
        self._hosts_lock = threading.Lock()
        self.num_restarts = 0
        count = len(self._hosts)
        self._placement = Placement(
            count,
            EngineLimits(
                config.cache.block_size,
                config.cache.num_blocks,
                config.scheduler.max_num_seqs,
                config.scheduler.max_num_batched_tokens,
            ),
        )
        self._stats = [_IDLE] * count
        self._stores: dict[int, KVStoreStats] = {}
        """By engine, what it has last sent."""

    @property
    def pids(self) -> list[int]:
        """Process ids of the engines."""
        return [host.pid for host in self._hosts]

    def attach(self, loop: asyncio.AbstractEventLoop, listener: EngineListener) -> None:
        super().attach(loop, listener)
        for number in range(len(self._hosts)):
            self._attach(number, loop)

    def _attach(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        host = self._hosts[number]
        on_outputs = partial(self._on_outputs, number)
        host.attach(loop, EngineListener(on_outputs, partial(self._on_dead, number, host)))

    async def call(self, command: str, *args: Any, **kwargs: Any) -> Any:
        """Runs a command on all engines at once and joins their answers. Raises EngineDeadError for
        one that may replace weights while an engine is being started again."""
        if self._dead_cause is not None:
            raise EngineDeadError(self._dead_cause)
        numbers = self._numbers_up()
        if self._down and replaces_weights(command, args):
            raise EngineDeadError(_being_started(next(iter(self._down.values()))))
        with self._carried.during(command, args):
            answers = await asyncio.gather(
                *(self._call(number, command, *args, **kwargs) for number in numbers)
            )
        if command == "reset_prefix_cache":
            self._placement.forget_prefixes()
        return join_answers(command, answers)

    async def _call(self, number: int, command: str, *args: Any, **kwargs: Any) -> Any:
        with self._named(number):
            answer = await self._hosts[number].call(command, *args, **kwargs)
        self._carried.note(command, args)
        return answer

    @contextmanager
    def _named(self, number: int) -> Iterator[None]:
        """An error about the death of an engine names the engine."""
        try:
            yield
        except EngineDeadError as error:
            raise EngineDeadError(f"{self._name(number)}: {error}") from None

    def health(self) -> EngineHealth:
        if self._dead_cause is not None:
            return EngineHealth("dead", self._dead_cause)
        down = dict(self._down)
        found = [
            (number, host.health()) for number, host in enumerate(self._hosts) if number not in down
        ]
        if not found:
            return EngineHealth("stalled", _being_started(next(iter(down.values()))))
        number, worst = min(found, key=lambda one: _WORST[one[1].state])
        if worst.state == "dead" and self._restarts.limit:  # `_on_dead` will decide
            worst = EngineHealth("stalled", worst.reason)
        if worst.state == "alive":
            return worst
        return EngineHealth(worst.state, f"{self._name(number)}: {worst.reason}")

    def shutdown(self, timeout_s: float | None = None) -> None:
        self._ending.set()
        with self._hosts_lock:
            hosts = list(self._hosts)
        for host in hosts:
            host.shutdown(timeout_s)
        self._mark_shut_down()

    def abandon(self) -> None:
        self._ending.set()
        for host in self._hosts:
            host.abandon()

    def _deliver(self, command: Command) -> None:
        if isinstance(command, AddRequest):
            request = command.request
            self._require_engine(request.data_parallel_rank)
            adapter = request.lora or request.prompt_adapter
            number = self._placement.place(
                request.request_id,
                request.prompt_token_ids,
                request.scope,
                request.data_parallel_rank,
                request.input_rows,
                "" if adapter is None else f"{adapter.name}\0{adapter.path}",
            )
            with self._named(number):
                self._hosts[number].add_request(request)
        elif isinstance(command, AbortRequests):
            self._abort(command.request_ids)
        elif isinstance(command, Call):  # of `notify`
            for host in self._hosts:
                host.notify(command.command)

    def _numbers_up(self) -> list[int]:
        """Engines that are not being started again. Raises EngineDeadError if there is none."""
        self._require_engine(None)
        return [number for number in range(len(self._hosts)) if number not in self._down]

    def _require_engine(self, chosen: int | None) -> None:
        """Raises EngineDeadError if no engine, or not the one that was chosen, is there."""
        down = self._down
        if chosen in down or len(down) == len(self._hosts):
            cause = down[chosen] if chosen is not None else next(iter(down.values()))
            raise EngineDeadError(_being_started(cause))

    def _abort(self, request_ids: list[str]) -> None:
        by_engine: dict[int, list[str]] = {}
        for request_id in request_ids:
            number = self._placement.engine_of(request_id)
            if number is not None:
                by_engine.setdefault(number, []).append(request_id)
                self._placement.end(request_id)
        for number, ids in by_engine.items():
            with suppress(EngineDeadError):
                self._hosts[number].abort_requests(ids)

    def _on_outputs(self, number: int, outputs: EngineCoreOutputs) -> None:
        for output in outputs.outputs:
            self._placement.advance(output.request_id, output.new_token_ids)
            if output.finish_reason is not None:
                self._placement.end(output.request_id)
        if outputs.stats is not None:
            outputs.stats = self._joined(number, outputs.stats)
        if self._listener is not None:
            self._listener.on_outputs(outputs)

    def _joined(self, number: int, stats: SchedulerStats) -> SchedulerStats:
        """The statistics of all engines, after those of one of them."""
        self._stats[number] = stats
        # An engine whose last request was aborted sends nothing more, and its last step counts it.
        by_engine = [
            one if self._placement.num_open(engine) else _IDLE
            for engine, one in enumerate(self._stats)
        ]
        joined = join_stats(by_engine, stats)
        if stats.kv_store is not None:
            self._stores[number] = stats.kv_store
            joined.kv_store = join_stores(list(self._stores.values()))
        return joined

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
        lost = self._placement.take_out(number)
        self._stats[number] = _IDLE
        if lost and self._listener is not None:
            self._listener.on_lost(lost, EngineDeadError(_being_started(cause)))
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
        for command, args in self._carried.commands():
            self._hosts[number].notify(command, *args)
        self._placement.bring_in(number)
        del self._down[number]
        self.num_restarts += 1
        logger.info("%s works again", self._name(number))

    def _name(self, number: int) -> str:
        return f"engine {number} of {len(self._hosts)}"


def _being_started(cause: str) -> str:
    return f"{cause}; it is being started again"


def _start(
    config: EngineConfig, step_timeout_s: float, number: int, given_up: threading.Event
) -> ProcessHost:
    return ProcessHost(_of_engine(config, number), step_timeout_s, given_up=given_up)


def _start_all(
    start: Callable[[int, threading.Event], ProcessHost], count: int
) -> list[ProcessHost]:
    """Starts all engines at once. Raises what prevented one of them, after ending the others."""
    given_up = threading.Event()
    with ThreadPoolExecutor(count, "quire-start") as threads:
        starting = [threads.submit(start, number, given_up) for number in range(count)]
        ended = (one.exception() for one in as_completed(starting))
        try:
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
    """The configuration of one engine: its number, its endpoints of KV events, and its share of the
    cores that were named."""
    cores, count = config.device.cores, config.parallel.data_parallel_size
    events = None if config.kv_events is None else config.kv_events.of_rank(number)
    parallel = replace(config.parallel, data_parallel_rank=number)
    config = replace(config, parallel=parallel, kv_events=events)
    if cores is None or len(cores) < count:
        return config
    first, last = (len(cores) * part // count for part in (number, number + 1))
    return replace(config, device=replace(config.device, cores=cores[first:last]))
