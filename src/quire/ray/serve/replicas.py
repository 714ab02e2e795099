"""`Replicas`: the replicas of a deployment of engines, as Ray Serve reports them, and connections
to each of them. Requests do not go through Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import Any

from quire.ray.serve.links import Entrance, Link, entrance_decoder, opened

_FOLLOWED: dict[Any, Replicas] = {}
"""By the id of the deployment."""


def report(deployment: Any, replicas: frozenset[str]) -> None:
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
        self._loop = asyncio.get_running_loop()
        self._asking: asyncio.Task[None] | None = None
        _FOLLOWED[handle.deployment_id] = self
        self._config = handle.options(method_name="config")
        self._entrance = handle.options(method_name="entrance")

    async def config(self) -> bytes:
        """The configuration of the engines, as soon as one of them is there."""
        data: bytes = await self._config.remote()
        return data

    async def connect(self, replica: str, front_end: str) -> tuple[Entrance, Link]:
        """A new connection to a replica. Raises what prevents it."""
        entrance = entrance_decoder.decode(await self._entrance.remote(replica))
        return entrance, await opened(entrance, front_end)

    def ask_for_one(self) -> None:
        """A call waits for a replica, so that Ray Serve starts one if it has ended all."""
        if not self.ids and (self._asking is None or self._asking.done()):
            # Apart from the HTTP request that is handled, with which Ray Serve would cancel it.
            self._asking = Context().run(self._loop.create_task, self._ask())

    async def _ask(self) -> None:
        with suppress(Exception):
            await self.config()

    def update(self, replicas: frozenset[str]) -> None:
        """Any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._set, replicas)

    def _set(self, replicas: frozenset[str]) -> None:
        self.ids = replicas
        self.on_change()
