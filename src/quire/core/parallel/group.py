"""`EngineGroup`: several engines with the same model, as one engine.

Each engine has its own KV cache. `Placement` chooses the engine of each request. Requests of an
engine that dies are placed on another one if they have no output yet; the others end with the
cause. A subclass knows where the engines are and what replaces them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from quire.config import EngineConfig
from quire.core.client import EngineCoreClient, EngineHealth
from quire.core.messages import AbortRequests, AddRequest, Call, Command
from quire.core.parallel.joining import join_answers, join_stats, join_stores
from quire.core.parallel.restarts import CarriedState, replaces_weights
from quire.errors import EngineDeadError
from quire.kvcache.sequence import model_root
from quire.log import get_logger
from quire.placement import Placement
from quire.placement.policy import EngineLimits
from quire.protocol import EngineCoreOutputs, EngineCoreRequest, KVStoreStats, SchedulerStats

logger = get_logger(__name__)

_IDLE = SchedulerStats(num_running=0, num_waiting=0, kv_cache_usage=0.0)
_WORST = {"dead": 0, "stalled": 1, "alive": 2}
_MOST_PLACES = 3
"""Engines that get a request one after the other: it may be what they die of."""


class EngineGroup(EngineCoreClient):
    """Owns a client of each engine, by its number. Numbers of engines are not used again, unless a
    new one takes the place of one that has died."""

    is_other_process = True

    def __init__(self, config: EngineConfig) -> None:
        super().__init__()
        self._hosts: dict[int, EngineCoreClient] = {}
        self._down: dict[int, str] = {}
        """Causes of death of engines in `_hosts` that are being replaced."""
        self._carried = CarriedState()
        cache = config.cache
        self._placement = Placement(
            0,
            EngineLimits(
                cache.block_size,
                cache.num_blocks,
                config.scheduler.max_num_seqs,
                config.scheduler.max_num_batched_tokens,
            ),
            model_root(cache.fingerprint, cache.block_size, cache.kv_cache_dtype),
        )
        self._unstarted: dict[str, tuple[EngineCoreRequest, int]] = {}
        """Requests without an output, and how many engines they had."""
        self._stats: dict[int, SchedulerStats] = {}
        self._stores: dict[int, KVStoreStats] = {}
        """By engine, what it has last sent."""

    @property
    def num_engines(self) -> int:
        return len(self._hosts)

    @property
    def root(self) -> bytes:
        """The root of the keys of blocks: groups with the same root have the same keys."""
        return self._placement.root

    async def call(self, command: str, *args: Any, **kwargs: Any) -> Any:
        """Runs a command on all engines at once and joins their answers. Raises EngineDeadError for
        one that may replace weights while an engine is being replaced."""
        if self._dead_cause is not None:
            raise EngineDeadError(self._dead_cause)
        numbers = self._numbers_up()
        if self._down and replaces_weights(command, args):
            raise EngineDeadError(being_started(next(iter(self._down.values()))))
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
            (number, host.health())
            for number, host in list(self._hosts.items())
            if number not in down
        ]
        if not found:
            return EngineHealth("stalled", self._none_there())
        number, worst = min(found, key=lambda one: _WORST[one[1].state])
        if worst.state == "dead" and self._replaces_dead:  # the listener will decide
            worst = EngineHealth("stalled", worst.reason)
        if worst.state == "alive":
            return worst
        return EngineHealth(worst.state, f"{self._name(number)}: {worst.reason}")

    @property
    def _replaces_dead(self) -> bool:
        """Whether a dead engine is replaced, so that the group is not dead."""
        return True

    def _none_there(self) -> str:
        """Why no engine is there."""
        cause = next(iter(dict(self._down).values()), None)
        return "no engine is there" if cause is None else being_started(cause)

    def _name(self, number: int) -> str:
        return f"engine {number} of {len(self._hosts)}"

    def _deliver(self, command: Command) -> None:
        if isinstance(command, AddRequest):
            self._require_engine(command.request.data_parallel_rank)
            self._place(command.request, 1)
        elif isinstance(command, AbortRequests):
            self._abort(command.request_ids)
        elif isinstance(command, Call):  # of `notify`
            for host in self._hosts.values():
                host.notify(command.command)

    def _place(self, request: EngineCoreRequest, num_places: int) -> None:
        """One of the engines must be there."""
        known_keys, request.block_keys = request.block_keys, []
        number = self._placement.place(
            request.request_id,
            request.prompt_token_ids,
            request.scope,
            self._chosen(request),
            request.input_rows,
            _adapter_of(request),
            known_keys,
        )
        self._unstarted[request.request_id] = (request, num_places)
        with self._named(number):
            self._hosts[number].add_request(request)

    def block_keys(self, request: EngineCoreRequest) -> list[bytes]:
        return self._placement.keys_of(
            request.prompt_token_ids, request.scope, request.input_rows, _adapter_of(request)
        )

    def _chosen(self, request: EngineCoreRequest) -> int | None:
        """The engine that the caller has chosen."""
        return request.data_parallel_rank

    def _numbers_up(self) -> list[int]:
        """Engines that are there. Raises EngineDeadError if there is none."""
        self._require_engine(None)
        return [number for number in self._hosts if number not in self._down]

    def _require_engine(self, chosen: int | None) -> None:
        """Raises EngineDeadError if no engine, or not the one that was chosen, is there."""
        if chosen in self._down:
            raise EngineDeadError(being_started(self._down[chosen]))
        if len(self._down) == len(self._hosts):
            raise EngineDeadError(self._none_there())

    def _abort(self, request_ids: list[str]) -> None:
        by_engine: dict[int, list[str]] = {}
        for request_id in request_ids:
            self._unstarted.pop(request_id, None)
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
            if output.new_token_ids or output.finish_reason is not None:
                self._unstarted.pop(output.request_id, None)
        if (blocks := outputs.blocks) is not None:
            self._placement.observe(
                number, blocks.stored, blocks.removed, is_cleared=blocks.is_cleared
            )
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
            for engine, one in self._stats.items()
        ]
        joined = join_stats(by_engine, stats)
        if stats.kv_store is not None:
            self._stores[number] = stats.kv_store
            joined.kv_store = join_stores(list(self._stores.values()))
        return joined

    def _bring_in(self, number: int) -> None:
        """An engine is there from now on: it is in the state of the others, and reports its
        blocks."""
        host = self._hosts[number]
        for command, args in self._carried.commands():
            host.notify(command, *args)
        host.notify("follow_blocks")
        self._placement.bring_in(number)
        self._stats[number] = _IDLE
        self._down.pop(number, None)

    def _lose(self, number: int, cause: str) -> None:
        """An engine is gone. Its requests without an output are placed on others, if there are any;
        those that have begun, or whose caller has chosen the engine, end with the cause."""
        ids = self._placement.take_out(number)
        self._stats[number] = _IDLE
        kept = [self._unstarted.pop(one) for one in ids if one in self._unstarted]
        moved = [
            (request, num_places)
            for request, num_places in kept
            if num_places < _MOST_PLACES and self._chosen(request) is None and self._may_move
        ]
        lost = set(ids) - {request.request_id for request, _ in moved}
        if lost and self._listener is not None:
            self._listener.on_lost(
                [one for one in ids if one in lost], EngineDeadError(being_started(cause))
            )
        for request, num_places in moved:
            with suppress(EngineDeadError):  # of the next one, which will be reported
                self._place(request, num_places + 1)

    @property
    def _may_move(self) -> bool:
        """Whether requests can be placed now."""
        return len(self._down) < len(self._hosts)


def _adapter_of(request: EngineCoreRequest) -> str:
    """The name and the path of a request's adapter in one text, which is empty without one."""
    adapter = request.lora or request.prompt_adapter
    return "" if adapter is None else f"{adapter.name}\0{adapter.path}"


def being_started(cause: str) -> str:
    """The error of requests that an engine has lost."""
    return f"{cause}; it is being started again"
