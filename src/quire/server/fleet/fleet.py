"""`Fleet`: loads and unloads the models of a server within one budget of memory.

Requests get their model by `acquire`, which loads it if need be, and give it back by `release`.
Loads run one at a time, in the order in which they were asked for; all requests for a model wait
for the same load. Knows no HTTP but its errors.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from quire.errors import QuireError
from quire.log import get_logger
from quire.metrics.metric_set import MetricSet
from quire.metrics.series import Counter, Gauge
from quire.planning.machine import available_memory
from quire.server.http.problems import HttpError, Problem, not_found, unavailable
from quire.server.served_adapters import served_modules
from quire.server.served_model import LoadedParts, ServedModel
from quire.system.at_exit import make_scratch, remove_scratch
from quire.units import format_bytes

if TYPE_CHECKING:
    from quire.config.engine_args import EngineArgs
    from quire.server.fleet.loading import ModelLoader
    from quire.server.fleet.member import Member

logger = get_logger(__name__)
_WATCH_S = 0.25
"""Time between two looks for models that are idle for too long, or whose engine has died."""
_POLL_S = 0.02
"""Time between two looks whether the requests of a model that must go have ended."""


class Fleet:
    """The models of one server. Owned by the event loop.

    Invariants: a model with requests is not unloaded; the models that are loaded, being loaded or
    being unloaded take at most the budget.
    """

    def __init__(
        self,
        members: Sequence[Member],
        budget_bytes: int,
        loader: ModelLoader,
        *,
        max_waiting: int,
        load_timeout_s: float,
    ) -> None:
        self.members = list(members)
        self.budget_bytes = budget_bytes
        self.engine_args: EngineArgs | None = None
        """Options of the models that callers add; None: they must not add any."""
        self.metrics = _FleetMetrics([member.name for member in members])
        self._loader = loader
        self._max_waiting = max_waiting
        self._load_timeout_s = load_timeout_s
        self._num_waiting = 0
        self._loads = asyncio.Lock()
        self._tasks = set[asyncio.Task[None]]()
        self._turns = make_scratch()
        self._is_closed = False

    def member_of(self, model: ServedModel) -> Member:
        """The member of a model. Raises HttpError 404 for a model that was removed."""
        for member in self.members:
            if member.model is model:
                return member
        raise not_found(model.names[0], [member.name for member in self.members])

    def add(self, member: Member) -> None:
        """Offers another model, which is not loaded."""
        self.metrics.add(member.name)
        self.members.append(member)

    async def remove(self, model: ServedModel) -> None:
        """Unloads a model and offers it no more. Raises HttpError 409 if it has requests."""
        member = self.member_of(model)
        await self.unload(model)
        if member.is_busy or member.state != "unloaded" or member.waiting:
            raise _has_requests(member)
        self.members.remove(member)

    # --- for requests

    async def acquire(self, model: ServedModel) -> None:
        """Waits until the model is loaded, and keeps it loaded until `release`. Raises HttpError
        503 if it cannot be."""
        member = self.member_of(model)
        if self._is_usable(member):
            model.num_users += 1
            member.last_used = time.monotonic()
            return
        granted = asyncio.get_running_loop().create_future()
        member.waiting.append(granted)
        try:
            while not granted.done():
                await self.load(model)
        except BaseException:
            if granted.done():
                self.release(model)
            else:
                member.waiting.remove(granted)
            raise

    def release(self, model: ServedModel) -> None:
        """Ends one use of a model."""
        model.num_users -= 1
        self.member_of(model).last_used = time.monotonic()

    def is_loaded(self, model: ServedModel) -> bool:
        """Whether `acquire` returns at once."""
        return self._is_usable(self.member_of(model))

    def keep_alive(self, model: ServedModel, seconds: float | None) -> None:
        """Sets the time for which the model stays loaded without requests, until it is unloaded;
        None: for ever. After the next load, its own value holds again."""
        self.member_of(model).keep_alive_s = seconds

    # --- for operators

    async def load(self, model: ServedModel) -> None:
        """Loads a model that is not loaded. Raises HttpError 503 if it cannot be, or if too many
        requests wait for a load."""
        member = self.member_of(model)
        if self._is_usable(member):
            return
        if self._num_waiting >= self._max_waiting:
            raise HttpError(unavailable(
                f"{self._num_waiting} requests wait for their model to be loaded, which is the "
                "limit (max_waiting_loads).", 5,
            ))  # fmt: skip
        if member.loading is None:
            member.loading = self._start(self._load(member))
        loading = member.loading
        self._num_waiting += 1
        try:
            await asyncio.wait_for(asyncio.shield(loading), self._load_timeout_s)
        except asyncio.CancelledError:
            if self._is_closed and loading.cancelled():
                raise _shutting_down() from None
            raise
        except asyncio.TimeoutError:
            raise HttpError(unavailable(
                f"The model `{member.name}` was not loaded within model_load_timeout "
                f"{self._load_timeout_s:g} s.", 5,
            )) from None  # fmt: skip
        finally:
            self._num_waiting -= 1

    async def unload(self, model: ServedModel) -> None:
        """Unloads a model. Raises HttpError 409 if it has requests."""
        member = self.member_of(model)
        if member.loading is not None:
            with suppress(HttpError):
                await asyncio.shield(member.loading)
        if member.is_busy:
            raise _has_requests(member)
        await self._unload(member, "asked for")

    async def watch(self) -> None:
        """Unloads models that were idle for their time, and engines that died; until cancelled."""
        while True:
            await asyncio.sleep(_WATCH_S)
            now = time.monotonic()
            for member in self.members:
                if member.state != "loaded":
                    continue
                engine, end = member.model.engine, member.expires_at()
                if engine is not None and engine.errored:
                    member.failure = str(engine.dead_error)
                    logger.error("the engine of %s died: %s", member.name, member.failure)
                    self._start(self._unload(member, "its engine died"))
                elif member.is_busy:
                    member.last_used = now
                elif end is not None and now >= end:
                    self._start(self._unload(member, "idle"))

    def end_loads(self) -> None:
        """Refuses the requests that wait for a load, and further loads, because the server ends."""
        self._is_closed = True
        for member in self.members:
            if member.loading is not None:
                member.loading.cancel()

    async def close(self) -> None:
        """Unloads all models, without waiting for their requests."""
        self._is_closed = True
        await asyncio.gather(*(self._unload(one, "shutting down") for one in self.members))
        remove_scratch(self._turns)

    # --- loads

    def _is_usable(self, member: Member) -> bool:
        engine = member.model.engine
        return engine is not None and not engine.errored and not member.is_leaving

    async def _load(self, member: Member) -> None:
        try:
            async with self._loads:
                await self._load_now(member)
        finally:
            member.loading = None

    async def _load_now(self, member: Member) -> None:
        if self._is_closed:
            raise _shutting_down()
        if self._is_usable(member):
            self._grant(member)  # it stayed after all
            return
        if member.config is None:
            raise HttpError(
                unavailable(f"The model `{member.name}` does not fit: {member.failure}", 60)
            )
        if member.model.engine is not None:
            await self._unload(member, "its engine died")
        if member.unloading is not None:
            await asyncio.shield(member.unloading)
        await self._make_room(member)
        began_at = time.perf_counter()
        device = replace(member.config.device, turns=self._turns)
        try:
            modules = served_modules(member.entry.server, member.model.names, member.config)
            config = replace(member.config, device=device)
            engine = await self._loader.load(member.model, config, ())
            await member.model.adapters.load_offered(engine, [one.name for one in modules])
        except QuireError as error:
            member.failure = str(error)
            logger.error("loading %s failed: %s", member.name, error)
            raise HttpError(
                unavailable(f"The model `{member.name}` could not be loaded: {error}", 5)
            ) from None
        member.failure = ""
        self._grant(member)
        seconds = time.perf_counter() - began_at
        self.metrics.loaded(member.name, seconds)
        logger.info("loaded %s in %.2f s: %s", member.name, seconds, format_bytes(member.num_bytes))

    def _grant(self, member: Member) -> None:
        """Gives a loaded model to the requests that wait for it, before another load may want its
        memory."""
        for granted in member.waiting:
            member.model.num_users += 1
            granted.set_result(None)
        member.waiting.clear()
        member.last_used = time.monotonic()

    async def _make_room(self, member: Member) -> None:
        """Unloads models until `member` fits. Waits for the requests of models that must go."""
        end = time.monotonic() + self._load_timeout_s
        try:
            while (missing := member.num_bytes - self._free_bytes()) > 0:
                held = [one for one in self.members if one.state == "loaded" and one is not member]
                everything = to_unload(missing, map(_holding, held))
                if everything is None and not any(one.unloading for one in self.members):
                    raise HttpError(unavailable(self._no_room(member, held), 30))
                idle = to_unload(missing, [_holding(one) for one in held if not one.is_busy])
                if idle is None:
                    for one in held:
                        one.is_leaving = one.name in (everything or ())
                    if time.monotonic() >= end:
                        raise HttpError(unavailable(self._no_room(member, held), 30))
                    await asyncio.sleep(_POLL_S)
                for one in held:
                    if one.name in (idle or ()) and not one.is_busy:
                        await self._unload(one, f"for {member.name}")
        finally:
            for one in self.members:
                one.is_leaving = False

    def _free_bytes(self) -> int:
        """Bytes that may be used now: the rest of the budget, and no more than the machine has."""
        held = [one.num_bytes for one in self.members if one.state in ("loaded", "unloading")]
        return min(self.budget_bytes - sum(held), available_memory().available_bytes)

    def _no_room(self, member: Member, held: Sequence[Member]) -> str:
        busy = [
            f"`{one.name}` with requests {format_bytes(one.num_bytes)}"
            for one in held
            if one.is_busy
        ]
        free = max(0, self._free_bytes())
        idle = sum(one.num_bytes for one in held if not one.is_busy)
        return (
            f"The model `{member.name}` needs {format_bytes(member.num_bytes)}, and "
            f"{format_bytes(free + idle)} of {format_bytes(self.budget_bytes)} can be made free"
            + (f": {', '.join(busy)}." if busy else ".")
        )

    async def _unload(self, member: Member, why: str) -> None:
        """Unloads a model, or waits until it is unloaded. The model is not used from now on."""
        if member.unloading is None:
            if member.model.engine is None:
                return
            member.unloading = self._start(self._unload_now(member, member.model.detach()))
            member.keep_alive_s = member.entry.keep_alive_s
            logger.info("unloading %s: %s", member.name, why)
            self.metrics.unloaded(member.name)
        await asyncio.shield(member.unloading)

    async def _unload_now(self, member: Member, parts: LoadedParts) -> None:
        try:
            await self._loader.unload(parts)
        finally:
            member.unloading = None

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task and holds it. Its error is that of those who wait for it, if any."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)

        def on_done(_: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                task.exception()

        task.add_done_callback(on_done)
        return task


def _holding(member: Member) -> Holding:
    return Holding(member.name, member.num_bytes, member.last_used)


def _shutting_down() -> HttpError:
    return HttpError(unavailable("The server is shutting down.", 5))


def _has_requests(member: Member) -> HttpError:
    return HttpError(Problem(
        409, f"The model `{member.name}` has requests; try again when they have ended.",
        param="model", type="Conflict",
    ))  # fmt: skip


class _FleetMetrics:
    """Counters of loads and unloads, by model."""

    def __init__(self, names: Sequence[str]) -> None:
        self.metric_set = MetricSet({})
        self._loads = self.metric_set.counters(
            "quire:model_loads", "Loads of a model of several.", ("model_name",), ()
        )
        self._seconds = self.metric_set.counters(
            "quire:model_load_seconds", "Time that its loads took.", ("model_name",), ()
        )
        self._is_loaded = self.metric_set.gauges(
            "quire:model_loaded", "Whether it is loaded.", ("model_name",), ()
        )
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """Creates the series of a model."""
        self._loads.series.setdefault((name,), Counter())
        self._seconds.series.setdefault((name,), Counter())
        self._is_loaded.series.setdefault((name,), Gauge())

    def loaded(self, name: str, seconds: float) -> None:
        """Counts a load."""
        self._loads.of(name).inc()
        self._seconds.of(name).inc(seconds)
        self._is_loaded.of(name).set(1)

    def unloaded(self, name: str) -> None:
        """Notes that a model is not loaded any more."""
        self._is_loaded.of(name).set(0)


@dataclass(frozen=True, slots=True)
class Holding:
    """Memory that a loaded model holds."""

    name: str
    num_bytes: int
    last_used: float


def to_unload(missing_bytes: int, holdings: Iterable[Holding]) -> list[str] | None:
    """Names of the models whose memory makes up for what is missing; None: all are not enough.

    The least recently used come first. A model that turns out not to be needed, because a larger
    one was added after it, stays.
    """
    chosen, freed = list[Holding](), 0
    for holding in sorted(holdings, key=lambda one: one.last_used):
        if freed >= missing_bytes:
            break
        chosen.append(holding)
        freed += holding.num_bytes
    if freed < missing_bytes:
        return None
    for holding in reversed(chosen[:]):
        if freed - holding.num_bytes >= missing_bytes:
            chosen.remove(holding)
            freed -= holding.num_bytes
    return [holding.name for holding in chosen]
