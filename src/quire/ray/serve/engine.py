"""`Engine`: a replica with one engine, whose requests come from front ends."""

from __future__ import annotations

import asyncio
import sys

from ray.util import get_node_ip_address

from quire.core.hosts import make_client
from quire.core.loop import SWITCH_INTERVAL_S
from quire.core.process_channel import EngineBoot, encoder
from quire.core.process_host import DEFAULT_CORE
from quire.errors import EngineDeadError
from quire.planning.plan import build_engine_config
from quire.ray.serve.access import check_cluster
from quire.ray.serve.autoscaling import OPEN_REQUESTS, PLACES, QUEUE_SECONDS
from quire.ray.serve.config import LLMConfig
from quire.ray.serve.links import EngineDoor
from quire.ray.serve.sessions import EngineSessions


class Engine:
    """Ray Serve makes it in a process of its own, passes on the calls of front ends, and asks for
    its health and its load."""

    def __init__(self, llm_config: LLMConfig, *, is_insecure: bool = False) -> None:
        """Loads the model. Raises what prevents it."""
        check_cluster(is_insecure=is_insecure)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        args = llm_config.server_args()
        self._config = build_engine_config(llm_config.engine_args(), "server")
        self._client = make_client(self._config, args.engine_mode, args.step_timeout)
        self._sessions = EngineSessions(self._client)
        self._door: EngineDoor | None = None

    async def config(self) -> bytes:
        """The engine's configuration, for `boot_decoder`."""
        return encoder.encode(EngineBoot(core_factory=DEFAULT_CORE, config=self._config, epoch=0.0))

    async def entrance(self, replica: str) -> bytes:
        """The `Entrance` for front ends, encoded. `replica`: this one; Ray Serve's router reads it.
        Raises EngineDeadError if the engine has died."""
        del replica
        if self._door is None:
            self._sessions.bind()
            self._door = EngineDoor(get_node_ip_address(), self._sessions.begin)
        self._sessions.require_life()
        return encoder.encode(self._door.entrance)

    def check_health(self) -> None:
        """Raises EngineDeadError if the engine has died: Ray Serve then replaces this replica."""
        health = self._client.health()
        if health.state == "dead":
            raise EngineDeadError(health.reason)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Numbers that `scale_on_queue_seconds` reads."""
        return {
            QUEUE_SECONDS: self._sessions.expected_wait_s(),
            PLACES: float(self._config.scheduler.max_num_seqs * self._client.num_engines),
            OPEN_REQUESTS: float(self._sessions.num_open),
        }

    async def __del__(self) -> None:
        """Ray Serve calls it when a replica is to end, and kills the replica after the deployment's
        `graceful_shutdown_timeout_s`."""
        await self._sessions.none_left()
        if self._door is not None:
            self._door.close()
        await asyncio.to_thread(self._client.shutdown)
