"""Replicas of Ray Serve in one process: engines over the fake core, which can be killed, frozen and
thawed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from fake_core import FakeCore
from fake_engine import fake_config

from quire.core.client import ThreadHost
from quire.ray.serve.links import Entrance, Link, link_over
from quire.ray.serve.sessions import EngineSessions


class FakeReplica:
    """One engine with its sessions."""

    def __init__(self, max_num_seqs: int = 4) -> None:
        self.cores: list[FakeCore] = []
        self.client = ThreadHost(lambda: self._core(max_num_seqs), 60.0)
        self.sessions = EngineSessions(self.client)
        self.sessions.bind()
        self.is_killed = False
        self.runs = asyncio.Event()
        self.runs.set()

    def _core(self, max_num_seqs: int) -> FakeCore:
        self.cores.append(FakeCore(fake_config(max_num_seqs=max_num_seqs)))
        return self.cores[-1]

    @property
    def core(self) -> FakeCore:
        return self.cores[0]

    async def connect(self, front_end: str) -> Link:
        """A front end's end of a new connection."""
        own, given = socket.socketpair()
        self.sessions.begin(front_end, own)
        return FakeLink(await link_over(given, accepts=False), self)


class FakeLink(Link):
    """A connection that stands still or breaks with its replica."""

    def __init__(self, link: Link, replica: FakeReplica) -> None:
        super().__init__(link._reader, link._writer)
        self._replica = replica

    async def read(self) -> bytes:
        message = await super().read()
        await self._alive()
        return message

    async def write(self, message: bytes) -> None:
        await self._alive()
        await super().write(message)

    async def _alive(self) -> None:
        await self._replica.runs.wait()
        if self._replica.is_killed:
            raise OSError("the process died")


class FakeReplicas:
    """`ReplicaCalls`."""

    def __init__(self, *names: str) -> None:
        self.by_name = {name: FakeReplica() for name in names}
        self.ids = frozenset(names)
        self.on_change: Callable[[], None] = lambda: None
        self.num_asked = 0

    async def connect(self, replica: str, front_end: str) -> tuple[Entrance, Link]:
        found = self.by_name[replica]
        await found.runs.wait()
        if found.is_killed:
            raise OSError("the process died")
        return Entrance("", 0, b"", "another machine", 1), await found.connect(front_end)

    def ask_for_one(self) -> None:
        self.num_asked += 1

    def set(self, *names: str) -> None:
        """Ray Serve reports these replicas."""
        for name in names:
            if name not in self.by_name:
                self.by_name[name] = FakeReplica()
        self.ids = frozenset(names)
        self.on_change()

    def close(self) -> None:
        for one in self.by_name.values():
            one.client.shutdown()
