"""`AdapterManager`: lets requests wait until their adapters are in memory; and the stages of the
engine, one for each kind of adapter.

Adapters are loaded on a thread, one after the other, while steps go on. A request begins with the
version of its adapter that is current then, and keeps it until it ends, whatever is loaded or
removed in the meantime.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import msgspec

from quire.adapters import AnyAdapterRequest
from quire.adapters.config import AdapterLimits
from quire.config.records import EngineConfig
from quire.core.adapters.kinds import AdapterKind, lora_kind, prompt_kind
from quire.core.adapters.residents import Residents
from quire.core.capabilities import refusal_of
from quire.core.capability import Capability, Passed, Stage
from quire.errors import ConfigError, QuireError, RequestError
from quire.executor.base import Executor
from quire.log import get_logger
from quire.protocol import EngineCoreRequest
from quire.scheduler.request import level_of
from quire.system.thread_states import be_nice

logger = get_logger(__name__)

_IDLE_WAIT_S = 0.01
"""Seconds that a step waits for an adapter if there is nothing else to do."""
_NICENESS = 10
"""Niceness of the thread that loads: steps need the cores more."""
COMMANDS = ("begin_load", "load_result", "withdraw_load", "remove", "ids", "pin")
"""Methods that are commands of the front end."""
_MOST_TICKETS = 1024
"""Newest results of commands that are kept."""


@dataclass(frozen=True, slots=True)
class _Version:
    """The present meaning of an adapter's number."""

    request: AnyAdapterRequest
    found: Mapping[str, Any]
    """Result of loading it."""

    @property
    def digest(self) -> str:
        """Digest of its numbers."""
        return str(self.found["digest"])


@dataclass(slots=True)
class _Load:
    """A load that is asked for or under way."""

    request: AnyAdapterRequest
    tickets: list[str] = field(default_factory=list)
    future: Future[dict[str, Any]] | None = None

    def is_for(self, request: AnyAdapterRequest) -> bool:
        own = self.request
        return (own.adapter_id, own.path) == (request.adapter_id, request.path)


class AdapterManager(Stage):
    """The adapters of one kind."""

    def __init__(
        self,
        kind: AdapterKind,
        limits: AdapterLimits,
        level_of: Callable[[EngineCoreRequest], float] = lambda _: 0,
    ) -> None:
        super().__init__(level_of)
        self._kind = kind
        self._residents = Residents(limits, kind.drop)
        self._current: dict[int, _Version] = {}
        """By number of the adapter."""
        self._asked: list[_Load] = []
        """Loads that commands have asked for, in order."""
        self._load: _Load | None = None
        """The load under way."""
        self._unnamed: list[str] = []
        """Versions to be dropped when the load under way has ended."""
        self._results: dict[str, dict[str, Any]] = {}
        self._news = Passed()
        """Result of the next `advance`."""
        self._threads = ThreadPoolExecutor(1, "quire-adapters", be_nice, (_NICENESS,))

    @property
    def is_active(self) -> bool:
        return bool(self._waiting or self._asked or self._load or self._news.failed)

    def is_needed_by(self, request: EngineCoreRequest) -> bool:
        return self._kind.of(request) is not None

    def advance(self, *, is_idle: bool) -> Passed:
        return self.take_in(_IDLE_WAIT_S if is_idle else 0.0)

    def take_in(self, wait_s: float = 0.0) -> Passed:
        """Takes in a load that is done within `wait_s` seconds, begins the next one, and returns
        the requests that may go on or have failed."""
        self._finish_load(wait_s)
        # First, because there may always be requests that need a load.
        self._begin_asked()
        news, self._news = self._news, Passed()
        is_full = False
        for request in self._in_order():
            adapter = self._kind.of(request)
            version = None if adapter is None else self._resident(adapter)
            if adapter is not None and version is None:
                is_full = is_full or not self._begin(_Load(adapter))
                continue
            if is_full:  # those who wait for room come first, so that they are not overtaken
                continue
            del self._waiting[request.request_id]
            if version is not None:
                try:
                    request = self._kind.prepared(request, version.found)
                except RequestError as error:
                    news.failed.append(refusal_of(request, str(error)))
                    continue
                self._residents.use(version.digest, request.request_id)
            news.ready.append(request)
        return news

    def settle(self) -> None:
        if self._load is not None and self._load.future is not None:
            wait_for([self._load.future])

    @property
    def commands(self) -> Mapping[str, Callable[..., Any]]:
        return {f"{self._kind.prefix}_{name}": getattr(self, name) for name in COMMANDS}

    def release_ended(self, unfinished: Container[str]) -> None:
        for request_id in self._residents.ended(unfinished):
            digest = self._residents.release(request_id)
            if digest is not None:
                self._drop_unnamed(digest)

    # Commands of the front end.

    def begin_load(self, fields: dict[str, Any], ticket: str) -> None:
        """Asks for a load. `ticket`: a name of the caller's for `load_result`; several engines may
        get the same command."""
        self._kind.check()
        request: AnyAdapterRequest = msgspec.convert(fields, self._kind.request_type)
        found = self._resident(request)
        if found is not None and not request.load_inplace:
            self._note([ticket], {"digest": found.digest, "is_new": False})
        else:
            self._asked.append(_Load(request, [ticket]))
            self._begin_asked()

    def load_result(self, ticket: str) -> dict[str, Any] | None:
        """The result of a load: `digest`, or `error`; None: not there yet. `is_unknown`: it was not
        asked for here."""
        self._finish_load(0.0)
        self._begin_asked()
        loads = [*self._asked, *([] if self._load is None else [self._load])]
        if ticket not in self._results and not any(ticket in one.tickets for one in loads):
            text = "the adapter was not loaded, because the engine was replaced; load it again"
            return {"error": text, "is_unknown": True}
        return self._results.get(ticket)

    def withdraw_load(self, ticket: str) -> bool:
        """Takes back a load that waits until other adapters make room. Returns whether it did."""
        if self._load is not None:
            return False
        before = len(self._asked)
        self._asked = [load for load in self._asked if ticket not in load.tickets]
        return len(self._asked) < before

    def remove(self, adapter_id: int) -> bool:
        """Forgets an adapter; requests that use it go on. Returns whether it was known."""
        version = self._current.pop(adapter_id, None)
        if version is None:
            return False
        self._drop_unnamed(version.digest)
        return True

    def ids(self) -> list[int]:
        """The numbers of all adapters that are in memory."""
        return sorted(i for i, one in self._current.items() if one.digest in self._residents)

    def pin(self, adapter_id: int) -> bool:
        """Keeps an adapter in memory until it is removed. Returns whether it is there."""
        version = self._current.get(adapter_id)
        if version is None or version.digest not in self._residents:
            return False
        self._residents.kept.add(version.digest)
        return True

    def shutdown(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _resident(self, request: AnyAdapterRequest) -> _Version | None:
        """The current version of an adapter, if it is in memory and from the same folder."""
        version = self._current.get(request.adapter_id)
        if version is None or version.request.path != request.path:
            return None
        return version if version.digest in self._residents else None

    def _begin(self, load: _Load) -> bool:
        """Starts a load if none is running. Returns False if the caller must try again later: the
        adapter does not fit yet, or another load has to end first."""
        if self._load is not None:
            if self._load.is_for(load.request) and not load.request.load_inplace:
                self._load.tickets += load.tickets
                return True
            return not load.tickets
        if not self._residents.make_room():
            return False
        load.future = self._threads.submit(self._kind.load, load.request.path, load.request.name)
        self._load = load
        return True

    def _begin_asked(self) -> None:
        if self._asked and self._begin(self._asked[0]):
            del self._asked[0]

    def _finish_load(self, timeout_s: float) -> None:
        load = self._load
        if load is None or load.future is None:
            return
        if timeout_s > 0:
            wait_for([load.future], timeout_s)
        if not load.future.done():
            return
        self._load = None
        self._note_loaded(load, load.future)
        waiting, self._unnamed = self._unnamed, []
        for digest in waiting:
            self._drop_unnamed(digest)

    def _note_loaded(self, load: _Load, future: Future[dict[str, Any]]) -> None:
        try:
            found = future.result()
        except (QuireError, OSError, MemoryError) as error:
            message = f"the adapter {load.request.name!r} cannot be loaded: {error}"
            logger.warning("%s", message)
            self._note(load.tickets, {"error": message})
            self._fail(load, message)
            return
        digest = str(found["digest"])
        before = self._current.get(load.request.adapter_id)
        self._residents.add(digest, int(found["num_bytes"]))
        self._current[load.request.adapter_id] = _Version(load.request, found)
        if before is not None and before.digest != digest:
            self._drop_unnamed(before.digest)
        self._note(load.tickets, {"digest": digest, "is_new": True})
        logger.info(
            "adapter %s: %s, %d bytes", load.request.name, found["description"], found["num_bytes"]
        )

    def _fail(self, load: _Load, message: str) -> None:
        """Ends the requests that wait for a load that failed."""
        for request in [*self._waiting.values()]:
            adapter = self._kind.of(request)
            if adapter is not None and load.is_for(adapter):
                del self._waiting[request.request_id]
                self._news.failed.append(refusal_of(request, message))

    def _drop_unnamed(self, digest: str) -> None:
        """Drops a version that no number means any more, unless requests use it. While a load is
        under way it waits, because that may be a load of the same numbers."""
        if self._load is not None:
            self._unnamed.append(digest)
        elif all(version.digest != digest for version in self._current.values()):
            self._residents.drop(digest)

    def _note(self, tickets: list[str], result: dict[str, Any]) -> None:
        for ticket in tickets:
            self._results[ticket] = result
        while len(self._results) > _MOST_TICKETS:
            del self._results[next(iter(self._results))]


class _NoAdapters(Capability):
    """Refuses the commands for adapters of one kind."""

    def __init__(self, kind: AdapterKind) -> None:
        self._kind = kind

    @property
    def commands(self) -> Mapping[str, Callable[..., Any]]:
        refuse = partial(_refuse, self._kind.refusal)
        return {f"{self._kind.prefix}_{name}": refuse for name in COMMANDS}


def adapter_stages(
    config: EngineConfig, executor: Executor, check_weights: Callable[[], None]
) -> list[Capability]:
    """The stages by kind of adapter. `check_weights`: raises ConfigError if LoRA adapters cannot be
    loaded now."""
    level = partial(level_of, config.scheduler.policy)
    kinds = [
        (lora_kind(executor, check_weights), config.lora),
        (prompt_kind(executor), config.prompt_adapters),
    ]
    return [
        _NoAdapters(kind) if own is None else AdapterManager(kind, own.limits, level)
        for kind, own in kinds
    ]


def _refuse(refusal: str, *args: Any) -> NoReturn:
    del args
    raise ConfigError(refusal)
