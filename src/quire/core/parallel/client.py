"""`ParallelClient`: several engine processes with the same model, as one engine
(`data_parallel_size`).

Each engine has its own KV cache and its share of the threads and of the memory. `Placement`
chooses the engine of each request. If one engine dies, the whole client is dead, as vLLM's is.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from quire.config import EngineConfig
from quire.core.client import EngineCoreClient, EngineHealth, EngineListener
from quire.core.commands import AbortRequests, AddRequest, Call, Command
from quire.core.parallel.joining import join_answers, join_stats, join_stores
from quire.core.process.host import ProcessHost
from quire.errors import EngineDeadError
from quire.placement import Placement
from quire.placement.policy import EngineLimits
from quire.protocol import EngineCoreOutputs, KVStoreStats, SchedulerStats

_IDLE = SchedulerStats(num_running=0, num_waiting=0, kv_cache_usage=0.0)
_WORST = {"dead": 0, "stalled": 1, "alive": 2}


class ParallelClient(EngineCoreClient):
    """Owns a `ProcessHost` for each engine."""

    is_other_process = True

    def __init__(self, config: EngineConfig, step_timeout_s: float) -> None:
        super().__init__()
        self._hosts = _start(config, step_timeout_s)
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
        for number, host in enumerate(self._hosts):
            on_outputs = partial(self._on_outputs, number)
            host.attach(loop, EngineListener(on_outputs, partial(self._on_dead, number)))

    async def call(self, command: str, *args: Any, **kwargs: Any) -> Any:
        """Runs a command on all engines at once and joins their answers."""
        if self._dead_cause is not None:
            raise EngineDeadError(self._dead_cause)
        calls = [host.call(command, *args, **kwargs) for host in self._hosts]
        answers = await asyncio.gather(*calls)
        if command == "reset_prefix_cache":
            self._placement.forget_prefixes()
        return join_answers(command, answers)

    def health(self) -> EngineHealth:
        found = [host.health() for host in self._hosts]
        number, worst = min(enumerate(found), key=lambda one: _WORST[one[1].state])
        if self._dead_cause is not None:
            return EngineHealth("dead", self._dead_cause)
        if worst.state == "alive":
            return worst
        return EngineHealth(worst.state, f"{self._name(number)}: {worst.reason}")

    def shutdown(self, timeout_s: float | None = None) -> None:
        for host in self._hosts:
            host.shutdown(timeout_s)
        self._mark_shut_down()

    def abandon(self) -> None:
        for host in self._hosts:
            host.abandon()

    def _deliver(self, command: Command) -> None:
        if isinstance(command, AddRequest):
            request = command.request
            number = self._placement.place(
                request.request_id,
                request.prompt_token_ids,
                request.cache_salt,
                request.data_parallel_rank,
                request.input_rows,
            )
            self._hosts[number].add_request(request)
        elif isinstance(command, AbortRequests):
            self._abort(command.request_ids)
        elif isinstance(command, Call):  # of `notify`
            for host in self._hosts:
                host.notify(command.command)

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

    def _on_dead(self, number: int, error: EngineDeadError) -> None:
        if self._dead_cause is None:
            self._dead_cause = f"{self._name(number)}: {error}"
            self._report_death(self._dead_cause)

    def _name(self, number: int) -> str:
        return f"engine {number} of {len(self._hosts)}"


def _start(config: EngineConfig, step_timeout_s: float) -> list[ProcessHost]:
    """Starts all engines at once. Raises what prevented one of them, after ending the others."""
    count = config.parallel.data_parallel_size
    with ThreadPoolExecutor(count, "quire-start") as threads:
        starting = [
            threads.submit(ProcessHost, _of_engine(config, number), step_timeout_s)
            for number in range(count)
        ]
    errors = [error for one in starting if (error := one.exception()) is not None]
    if not errors:
        return [one.result() for one in starting]
    for one in starting:
        if one.exception() is None:
            one.result().shutdown()
    raise errors[0]


def _of_engine(config: EngineConfig, number: int) -> EngineConfig:
    """The configuration of one engine: its share of the cores that were named."""
    cores, count = config.device.cores, config.parallel.data_parallel_size
    if cores is None or len(cores) < count:
        return config
    first, last = (len(cores) * part // count for part in (number, number + 1))
    return replace(config, device=replace(config.device, cores=cores[first:last]))
