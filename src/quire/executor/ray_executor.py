"""`RayDistributedExecutor`: Ray chooses the machines of the ranks, and starts and ends their
processes (`distributed_executor_backend="ray"`).

Ray has no part in a step. On each machine an actor runs the program of `nodes/agent.py`, as `quire
serve --headless` does, and from then on everything is as on machines that were started by hand.
"""

from __future__ import annotations

import secrets
import time
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from quire import env
from quire.config.records import EngineConfig
from quire.errors import ConfigError
from quire.executor.multiproc import MultiprocExecutor
from quire.executor.nodes.door import Door
from quire.executor.nodes.gather import admit_all, begin, check_all, ended_on_error
from quire.executor.nodes.node import EXIT_S, Node
from quire.executor.nodes.rank_spawn import Group
from quire.executor.nodes.remote import RemoteNode
from quire.executor.rank_processes import RankProcesses
from quire.executor.ray_actor import NodeActor
from quire.executor.ray_cluster import connect
from quire.executor.ray_places import Machine, Places, find_places

_POLL_S = 0.05
_CONNECT_S = 300.0
"""Seconds that an actor may take to be created and to connect; its end is noticed at once."""


class RayDistributedExecutor(MultiprocExecutor):
    """Runs the ranks as its base class does, on machines of a Ray cluster."""

    def __init__(self, config: EngineConfig) -> None:
        # On the caller's thread, because Ray's first use in a process has to be on it.
        ray = connect(config)
        places = find_places(ray, config)
        try:
            ranks = RankProcesses(config, lambda config: _start_nodes(ray, places, config))
        except BaseException:
            places.release()
            raise
        super().__init__(config, ranks)


@dataclass(frozen=True, slots=True)
class _Started:
    """An actor that runs the program of a machine."""

    ray: Any
    machine: Machine
    actor: Any
    run: Any
    """Ray's reference to what the actor returns when its program has ended."""

    @property
    def has_ended(self) -> bool:
        return bool(self.ray.wait([self.run], timeout=0)[0])

    def how_it_ended(self) -> str:
        """The reason why the actor has ended, in one line."""
        try:
            return str(self.ray.get(self.run))
        except Exception as error:  # of many classes
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            return f"its actor has ended: {first}"

    def kill(self) -> None:
        """Ray kills the actor, and the kernel what the actor has started, even if it is stopped."""
        with suppress(Exception):  # the actor or the cluster has ended
            self.ray.kill(self.actor)


class RayNode(RemoteNode):
    """A machine whose program an actor runs."""

    def __init__(
        self, started: _Started, places: Places, door: Door, number: int, connection: Connection
    ) -> None:
        self._started = started
        self._places = places
        super().__init__(door, number, connection)

    def __str__(self) -> str:
        return f"node {self.number} ({self._started.machine.address})"

    def look(self) -> str | None:
        cause = super().look()
        if cause is None and self._started.has_ended:
            return f"{self}: {self._started.how_it_ended()}"
        return cause

    def kill(self) -> None:
        super().kill()
        self._started.kill()

    def end(self) -> None:
        super().end()
        until = time.monotonic() + EXIT_S
        while not self._started.has_ended and time.monotonic() < until:
            time.sleep(_POLL_S)
        self._started.kill()
        self._places.leave()


def _start_nodes(ray: Any, places: Places, config: EngineConfig) -> list[Node]:
    counts = tuple(len(machine.bundles) for machine in places.machines)
    parallel = replace(config.parallel, nnodes=len(counts), ranks_by_node=counts)
    config = replace(config, parallel=parallel)
    group, key = Group(config, secrets.randbits(63), node=-1), secrets.token_bytes(32)
    certificates = dict(zip(env.RANK_CERTIFICATES, env.rank_certificates() or (), strict=False))
    others: list[RemoteNode] = []
    started: list[_Started] = []

    def watch() -> None:
        """Raises ConfigError with Ray's reason if an actor ends before its machine connects."""
        check_all(others)
        for number, one in enumerate(started):
            if one.has_ended:
                raise ConfigError(f"node {number}: {one.how_it_ended()}")

    with closing(Door(places.own_address, 0, key, watch)) as door, ended_on_error(others):
        for number, machine in enumerate(places.machines):
            actor = machine.start(NodeActor, f"quire-{group.generation:x}-{number}")
            run = actor.run.remote(door.host, door.port, number, key, certificates)
            started.append(_Started(ray, machine, actor, run))
        until = time.monotonic() + _CONNECT_S

        def make(number: int, connection: Connection) -> RayNode:
            return RayNode(started[number], places, door, number, connection)

        admit_all(range(len(started)), make, door, until, config, others)
        return begin(group, others, door, key)
