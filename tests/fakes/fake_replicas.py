"""Replicas of Ray Serve in one process: engines over the fake core, which can be killed, frozen and
thawed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from fake_core import FakeCore
from fake_engine import fake_config

from quire.core.client import ThreadHost
from quire.core.process_channel import encoder
from quire.ray.serve.sessions import EngineSessions, Hello


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

    async def _alive(self) -> None:
        await self.runs.wait()
        if self.is_killed:
            raise RuntimeError("the actor died")


class FakeReplicas:
    """`ReplicaCalls`."""

    def __init__(self, *names: str) -> None:
        self.by_name = {name: FakeReplica() for name in names}
        self.ids = frozenset(names)
        self.on_change: Callable[[], None] = lambda: None
        self.num_asked = 0

    async def stream(
        self, replica: str, front_end: str, connection: str
    ) -> AsyncGenerator[bytes, None]:
        found = self.by_name[replica]
        await found._alive()
        is_first = True
        async for data in found.sessions.frames(front_end, connection):
            await found._alive()
            yield encoder.encode(Hello("another machine", 1)) if is_first else data
            is_first = False

    async def deliver(self, replica: str, front_end: str, connection: str, data: bytes) -> None:
        found = self.by_name[replica]
        await found._alive()
        found.sessions.deliver(front_end, connection, data)

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
