"""`ReplicaGroup`: the replicas of a deployment of engines, as one engine of a front end."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import msgspec

from quire.config import EngineConfig
from quire.core.client import STALLED_S, EngineCoreClient, EngineHealth, EngineListener
from quire.core.messages import AddRequest, Command, Dead, Reply, Step
from quire.core.parallel.group import EngineGroup
from quire.core.parallel.restarts import replaces_weights
from quire.core.process_channel import encoder
from quire.errors import ConfigError, EngineDeadError
from quire.log import get_logger
from quire.protocol import EngineCoreRequest
from quire.ray.serve.links import Entrance, Link, this_host
from quire.ray.serve.sessions import KEEP_ALIVE_S, Frame, frame_decoder
from quire.system.thread_states import is_stopped

logger = get_logger(__name__)

_SILENCE_S = 1.3
"""Seconds without a sign of life after which a replica counts as dead."""
_LONG_SILENCE_S = 10.0
"""The same, of a process of this machine that is not stopped: it gets no processor time."""
_WATCH_S = 0.2
_RETRY_S = 0.5


class ReplicaCalls(Protocol):
    """`Replicas`, or a fake in tests."""

    ids: frozenset[str]
    on_change: Callable[[], None]

    async def connect(self, replica: str, front_end: str) -> tuple[Entrance, Link]:
        """A new connection to a replica."""

    def ask_for_one(self) -> None:
        """Requests wait for a replica."""


class RemoteEngine(EngineCoreClient):
    """The engine of one replica, while it is connected. On the event loop only."""

    is_other_process = True

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link
        self._commands: list[bytes] = []
        self._woken = asyncio.Event()
        self._heard_at = self._sent_at = time.monotonic()

    async def send_all(self) -> None:
        """Sends the commands, those that have come meanwhile together. Raises what prevents it."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            commands, self._commands = self._commands, []
            await self._link.write(msgspec.msgpack.encode([msgspec.Raw(one) for one in commands]))
            self._sent_at = time.monotonic()

    async def watch(self, there: Entrance) -> None:
        """Lets something be sent from time to time. Raises EngineDeadError if the replica gives no
        sign of life."""
        is_local = there.host == this_host()
        while True:
            await asyncio.sleep(_WATCH_S)
            now = time.monotonic()
            if now - self._sent_at > KEEP_ALIVE_S:
                self._woken.set()
            silent_s = now - self._heard_at
            is_slow = is_local and silent_s < _LONG_SILENCE_S and not is_stopped(there.pid)
            if silent_s > _SILENCE_S and not is_slow:
                raise EngineDeadError(f"it has sent nothing for {silent_s:.1f} s")

    def take(self, frame: Frame) -> None:
        """Passes on the events of a frame. Raises EngineDeadError if the engine has died."""
        self._heard_at = time.monotonic()
        for event in frame.events:
            if isinstance(event, Step) and self._listener is not None:
                self._listener.on_outputs(event.outputs)
            elif isinstance(event, Reply):
                self._settle(event)
            elif isinstance(event, Dead):
                raise EngineDeadError(event.cause)

    def lose(self, cause: str) -> None:
        """The replica is gone."""
        self._declare_dead(cause)

    def health(self) -> EngineHealth:
        if self._dead_cause is not None:
            return EngineHealth("dead", self._dead_cause)
        silent_s = time.monotonic() - self._heard_at
        if silent_s > STALLED_S:
            return EngineHealth("stalled", f"it has sent nothing for {silent_s:.1f} s")
        return EngineHealth("alive")

    def shutdown(self, timeout_s: float | None = None) -> None:
        del timeout_s
        self._mark_shut_down()

    def abandon(self) -> None:
        self._mark_shut_down()

    def _deliver(self, command: Command) -> None:
        self._commands.append(encoder.encode(command))
        self._woken.set()


class ReplicaGroup(EngineGroup):
    """Replicas come and go. Requests wait while there is none, and a replica that is to end
    finishes those that it has. On the event loop only."""

    def __init__(self, config: EngineConfig, replicas: ReplicaCalls) -> None:
        super().__init__(config)
        self._replicas = replicas
        self._front_end = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._following: dict[str, asyncio.Task[None]] = {}
        """By replica."""
        self._connected: dict[str, int] = {}
        """Numbers of engines by replica."""
        self._held: dict[str, tuple[EngineCoreRequest, int]] = {}
        """Requests that wait for an engine, and how many engines they had."""
        self._is_ready = asyncio.Event()
        """Whether an engine was there."""

    def attach(self, loop: asyncio.AbstractEventLoop, listener: EngineListener) -> None:
        super().attach(loop, listener)
        self._replicas.on_change = self._follow_all
        self._follow_all()

    async def call(self, command: str, *args: Any, **kwargs: Any) -> Any:
        await self._is_ready.wait()  # for the first engine; later ones are missed with an error
        if replaces_weights(command, args) and list(args) != ["reload_weights", [], {}]:
            raise ConfigError(
                f"{args[0]} may replace weights, which replicas that start later would not have; "
                "deploy another application"
            )
        return await super().call(command, *args, **kwargs)

    def health(self) -> EngineHealth:
        """Alive if one replica is."""
        states = [host.health() for host in list(self._hosts.values())]
        alive = next((one for one in states if one.state == "alive"), None)
        return super().health() if alive is None or self._dead_cause is not None else alive

    def shutdown(self, timeout_s: float | None = None) -> None:
        del timeout_s
        self.abandon()

    def abandon(self) -> None:
        self._mark_shut_down()
        self._replicas.on_change = lambda: None
        for task in list(self._following.values()):
            with suppress(RuntimeError):  # its loop is closed
                task.get_loop().call_soon_threadsafe(task.cancel)

    def _follow_all(self) -> None:
        for replica in self._replicas.ids - self._following.keys():
            task = asyncio.get_running_loop().create_task(self._follow(replica))
            self._following[replica] = task
            task.add_done_callback(partial(self._forget, replica))
        for replica in self._following.keys() - self._replicas.ids:
            if replica not in self._connected:
                self._following[replica].cancel()

    def _forget(self, replica: str, task: asyncio.Task[None]) -> None:
        del task, self._following[replica]
        if self._dead_cause is None:
            self._follow_all()  # it may have come back meanwhile

    async def _follow(self, replica: str) -> None:
        """A replica, until it takes no requests any more and has none."""
        while replica in self._replicas.ids:
            number = next(self._numbers)
            try:
                await self._serve(number, replica)
            except Exception as error:
                cause = next(iter(str(error).splitlines()), type(error).__name__)
                self._drop(number, replica, f"replica {replica}: {cause}")
                await asyncio.sleep(_RETRY_S)

    async def _serve(self, number: int, replica: str) -> None:
        """One connection to a replica. Raises what ends it too early."""
        there, link = await self._replicas.connect(replica, self._front_end)
        host = RemoteEngine(link)
        self._take_in(number, replica, host)
        start = asyncio.get_running_loop().create_task
        reading = start(self._read(number, replica, host, link))
        tasks = [reading, start(host.send_all()), start(host.watch(there))]
        learning = start(self._learn(number, host))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            link.close()
            for task in (*tasks, learning):
                task.cancel()
            await asyncio.gather(*tasks, learning, return_exceptions=True)
        self._drop(number, replica, "it has ended")

    async def _read(self, number: int, replica: str, host: RemoteEngine, link: Link) -> None:
        """Takes frames until a replica that is to end has no requests left."""
        while not self._is_done(number, replica):
            frame = frame_decoder.decode(await link.read())
            self._placement.note_elsewhere(number, frame.num_elsewhere)
            host.take(frame)

    def _take_in(self, number: int, replica: str, host: RemoteEngine) -> None:
        loop = asyncio.get_running_loop()
        host.attach(loop, EngineListener(partial(self._on_outputs, number), lambda _: None))
        self._hosts[number] = host
        self._connected[replica] = number
        self._bring_in(number)
        self._is_ready.set()
        held, self._held = self._held, {}
        for request, num_places in held.values():
            self._place(request, num_places)

    async def _learn(self, number: int, host: RemoteEngine) -> None:
        """Takes in what the engine's prefix cache has already."""
        with suppress(Exception):
            keys = await host.call("follow_blocks")
            self._placement.observe(number, keys, (), is_cleared=False)

    def _is_done(self, number: int, replica: str) -> bool:
        """Whether a replica that is to end has no requests left."""
        if replica in self._replicas.ids:
            return False
        self._placement.retire(number)
        return self._placement.num_open(number) == 0

    def _drop(self, number: int, replica: str, cause: str) -> None:
        host = self._hosts.pop(number, None)
        if not isinstance(host, RemoteEngine):
            return
        logger.info("%s", cause)
        del self._connected[replica]
        host.lose(cause)
        self._lose(number, cause)
        self._stats.pop(number, None)
        self._stores.pop(number, None)

    def _deliver(self, command: Command) -> None:
        if isinstance(command, AddRequest):
            self._place(command.request, 1)
        else:
            super()._deliver(command)

    def _place(self, request: EngineCoreRequest, num_places: int) -> None:
        if self._placement.takes_requests:
            super()._place(request, num_places)
        else:
            self._hold(request, num_places)

    def _hold(self, request: EngineCoreRequest, num_places: int) -> None:
        """No replica is there."""
        self._held[request.request_id] = (request, num_places)
        self._replicas.ask_for_one()

    def _chosen(self, request: EngineCoreRequest) -> int | None:
        """The caller chooses an engine within a replica only."""
        del request
        return None

    def _abort(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self._held.pop(request_id, None)
        super()._abort(request_ids)

    @property
    def _may_move(self) -> bool:
        return True

    def _none_there(self) -> str:
        return "no replica is there"
