"""`Replicas`: the replicas of a deployment of engines, as Ray Serve reports them, and calls of each
of them.

A front end has placed a request before it calls a replica, so its calls name one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from contextvars import Context
from typing import Any

from ray.serve._private.common import RequestMetadata
from ray.serve.request_router import PendingRequest, RunningReplica

_FOLLOWED: dict[Any, Replicas] = {}
"""By the id of the deployment."""


def report(deployment: Any, replicas: dict[str, RunningReplica]) -> None:
    """These replicas of a deployment take requests. Any thread."""
    followed = _FOLLOWED.get(deployment)
    if followed is not None:
        followed.update(replicas)


class Replicas:
    """Made on the event loop of its owner, before the handle is used."""

    def __init__(self, handle: Any) -> None:
        """`handle`: of the deployment."""
        self.ids: frozenset[str] = frozenset()
        self.on_change: Callable[[], None] = lambda: None
        self._known: dict[str, RunningReplica] = {}
        """Also those that take no new requests, but have some."""
        self._loop = asyncio.get_running_loop()
        self._asking: asyncio.Task[None] | None = None
        _FOLLOWED[handle.deployment_id] = self
        self._config = handle.options(method_name="config")
        self._connect = handle.options(method_name="connect", stream=True)

    async def config(self) -> bytes:
        """The configuration of the engines, as soon as one of them is there."""
        data: bytes = await self._config.remote()
        return data

    async def stream(
        self, replica: str, front_end: str, connection: str
    ) -> AsyncGenerator[bytes, None]:
        """The messages of a replica. The session ends there when they are not read any more."""
        response = self._connect.remote(replica, front_end, connection)
        try:
            async for data in response:
                yield data
        finally:
            with suppress(Exception):
                response.cancel()
            if replica not in self.ids:
                self._known.pop(replica, None)

    async def deliver(self, replica: str, front_end: str, connection: str, data: bytes) -> None:
        """Sends commands, also to a replica that takes no calls through handles because it is to
        end. Returns when it has them."""
        name = f"{front_end}/{connection}"
        metadata = RequestMetadata(name, name, call_method="deliver")
        call = PendingRequest([replica, front_end, connection, data], {}, metadata)
        await self._known[replica].try_send_request(call, with_rejection=False).get_async()

    def ask_for_one(self) -> None:
        """A call waits for a replica, so that Ray Serve starts one if it has ended all."""
        if not self.ids and (self._asking is None or self._asking.done()):
            # Apart from the HTTP request that is handled, with which Ray Serve would cancel it.
            self._asking = Context().run(self._loop.create_task, self._ask())

    async def _ask(self) -> None:
        with suppress(Exception):
            await self.config()

    def update(self, replicas: dict[str, RunningReplica]) -> None:
        """Any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._set, replicas)

    def _set(self, replicas: dict[str, RunningReplica]) -> None:
        self._known |= replicas
        self.ids = frozenset(replicas)
        self.on_change()
