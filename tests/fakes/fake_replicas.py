"""Replicas of Ray Serve in one process: engines over the fake core, which can be killed, frozen and
thawed, and whose network can be cut; and `Front`, a front end that uses them."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from fake_core import FakeCore
from fake_engine import fake_config
from polling import soon

from quire.config import EngineConfig
from quire.core.client import EngineListener, ThreadHost
from quire.errors import EngineDeadError
from quire.params import SamplingParams
from quire.protocol import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from quire.ray.serve.links import Entrance, Link, link_over
from quire.ray.serve.replica_group import ReplicaGroup
from quire.ray.serve.sessions import EngineSessions

LONG = 100_000


class SeeingCore(FakeCore):
    """Keeps the requests that it gets, and names the K/V that it hands on."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.seen: list[EngineCoreRequest] = []

    def add_request(self, request: EngineCoreRequest) -> None:
        self.seen.append(request)
        super().add_request(request)

    def _advance(self, request: EngineCoreRequest) -> EngineCoreOutput:
        output = super()._advance(request)
        if request.hands_off:
            output.kv_name = f"kv of {request.request_id}"
        return output


class FakeReplica:
    """One engine with its sessions."""

    def __init__(self, max_num_seqs: int = 4) -> None:
        self.cores: list[SeeingCore] = []
        self.client = ThreadHost(lambda: self._core(max_num_seqs), 60.0)
        self.sessions = EngineSessions(self.client)
        self.sessions.bind()
        self.is_killed = False
        self.runs, self.network = asyncio.Event(), asyncio.Event()
        self.runs.set()
        self.network.set()
        self._relays: list[asyncio.Task[None]] = []
        self._relayed: list[socket.socket] = []

    def _core(self, max_num_seqs: int) -> SeeingCore:
        self.cores.append(SeeingCore(fake_config(max_num_seqs=max_num_seqs)))
        return self.cores[-1]

    @property
    def core(self) -> SeeingCore:
        return self.cores[0]

    def close(self) -> None:
        self.client.shutdown()
        for task in self._relays:
            task.cancel()
        for one in self._relayed:
            asyncio.get_running_loop().remove_reader(one)
            one.close()

    async def connect(self, front_end: str) -> Link:
        """A front end's end of a new connection."""
        own, given = socket.socketpair()
        self.sessions.begin(front_end, own)
        near, far = socket.socketpair()
        self._relayed += [given, near]
        for source, target in ((given, near), (near, given)):
            self._relays.append(asyncio.create_task(self._relay(source, target)))
        return FakeLink(await link_over(far, accepts=False), self)

    async def _relay(self, source: socket.socket, target: socket.socket) -> None:
        """Passes on bytes and the end of a connection, while the network is whole."""
        loop, data = asyncio.get_running_loop(), b"x"
        source.setblocking(False)
        with suppress(OSError):
            while data:
                data = await loop.sock_recv(source, 1 << 16)
                await self.network.wait()
                await loop.sock_sendall(target, data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


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
            one.close()


class Front:
    """A group, and what it sends to the front end."""

    def __init__(self, replicas: FakeReplicas, group: ReplicaGroup | None = None) -> None:
        self.replicas = replicas
        self.group = group or ReplicaGroup(fake_config(), replicas)
        self.tokens: dict[str, list[int]] = {}
        self.ended: set[str] = set()
        self.lost: dict[str, str] = {}
        self.group.attach(
            asyncio.get_running_loop(),
            EngineListener(self._on_outputs, lambda _: None, self._on_lost),
        )

    def add(
        self,
        name: str,
        max_tokens: int = 4,
        first: int = 7,
        num_prompt: int = 1,
        sampling: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        self.group.add_request(
            EngineCoreRequest(
                request_id=name,
                prompt_token_ids=[first] * num_prompt,
                arrival_time=time.time(),
                sampling_params=SamplingParams(max_tokens=max_tokens, seed=1, **sampling or {}),
                **fields,
            )
        )

    def engine_of(self, name: str) -> str:
        """The replica that computes a request."""
        number = self.group._placement.engine_of(name)
        return next(one for one, at in self.group._connected.items() if at == number)

    def _on_outputs(self, outputs: EngineCoreOutputs) -> None:
        for output in outputs.outputs:
            self.tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            if output.finish_reason is not None:
                self.ended.add(output.request_id)

    def _on_lost(self, ids: list[str], error: EngineDeadError) -> None:
        self.lost |= dict.fromkeys(ids, str(error))


@asynccontextmanager
async def front(*names: str) -> AsyncIterator[Front]:
    replicas = FakeReplicas(*names)
    one = Front(replicas)
    try:
        await soon(lambda: len(one.group._hosts) == len(names))
        yield one
    finally:
        one.group.shutdown()
        for replica in replicas.by_name.values():
            replica.runs.set()
        await asyncio.sleep(0)
        replicas.close()
