"""`AdapterGate`: lets a request through when all adapters that it names are in memory."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import partial

from quire.config.records import EngineConfig
from quire.core.adapters.kinds import lora_kind, prompt_kind
from quire.core.adapters.manager import AdapterManager, AdapterNews
from quire.executor.base import Executor
from quire.protocol import EngineCoreRequest
from quire.scheduler.queue import level_of


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """Requests that have not ended: those of the scheduler, and those that still wait."""

    running: Container[str]
    managers: Sequence[AdapterManager]

    def __contains__(self, request_id: object) -> bool:
        return request_id in self.running or any(one.has(str(request_id)) for one in self.managers)


class AdapterGate:
    """A request waits for its adapters one after the other, always in the same order, so that two
    requests never wait for each other. Owned by the engine core's thread."""

    def __init__(self, config: EngineConfig, executor: Executor) -> None:
        self.lora: AdapterManager | None = None
        """None: the engine has no such adapters."""
        self.prompt: AdapterManager | None = None
        level = partial(level_of, config.scheduler.policy)
        if config.lora is not None:
            self.lora = AdapterManager(lora_kind(executor), config.lora.limits, level)
        if config.prompt_adapters is not None:
            limits = config.prompt_adapters.limits
            self.prompt = AdapterManager(prompt_kind(executor), limits, level)
        self._managers = [one for one in (self.lora, self.prompt) if one is not None]

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait for an adapter."""
        return sum(one.num_waiting for one in self._managers)

    @property
    def is_active(self) -> bool:
        """Whether `advance` has something to do."""
        return any(one.is_active for one in self._managers)

    def add(self, request: EngineCoreRequest, first: int = 0) -> bool:
        """Lets a request wait, unless it names no adapter. Returns whether it waits; `advance` will
        return it."""
        for manager in self._managers[first:]:
            if manager.is_named_by(request):
                manager.add(request)
                return True
        return False

    def abort(self, request_id: str) -> None:
        """Forgets a waiting request; unknown ids are ignored."""
        for manager in self._managers:
            manager.abort(request_id)

    def has(self, request_id: str) -> bool:
        """Whether a request waits for an adapter."""
        return any(one.has(request_id) for one in self._managers)

    def advance(self, timeout_s: float = 0.0) -> AdapterNews:
        """Takes in loads that are done, begins the next ones, and returns the requests that may
        start or that have failed. Waits up to `timeout_s` for each kind of adapter."""
        news = AdapterNews()
        for number, manager in enumerate(self._managers):
            if not manager.is_active:
                continue
            own = manager.advance(timeout_s)
            news.failed += own.failed
            news.ready += [one for one in own.ready if not self.add(one, number + 1)]
        return news

    def settle(self) -> None:
        """Waits for the loads under way."""
        for manager in self._managers:
            manager.settle()

    def release_ended(self, unfinished: Container[str]) -> None:
        """Releases the adapters of requests that are neither unfinished nor waiting."""
        every = _Unfinished(unfinished, self._managers)
        for manager in self._managers:
            manager.release_ended(every)

    def shutdown(self) -> None:
        """Ends the threads. Idempotent."""
        for manager in self._managers:
            manager.shutdown()
