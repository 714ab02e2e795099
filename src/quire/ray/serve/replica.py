"""`Replica`: one of the servers of a deployment, with an engine of its own."""

from __future__ import annotations

import asyncio
from typing import Any

from quire.errors import EngineDeadError
from quire.frontend.observers.observer import request_log_choice
from quire.log import get_logger
from quire.planning.plan import build_engine_config
from quire.ray.serve.access import check_cluster
from quire.ray.serve.autoscaling import PLACES, QUEUE_SECONDS
from quire.ray.serve.config import LLMConfig
from quire.server.app import build_app
from quire.server.fleet.live_models import context_of_configs
from quire.server.fleet.loading import ModelLoader

logger = get_logger(__name__)


class Replica:
    """Ray Serve makes it in a process of its own, sends HTTP requests to its application, and asks
    for its health and its load."""

    def __init__(
        self, llm_config: LLMConfig, keys: tuple[str, ...], *, is_insecure: bool = False
    ) -> None:
        """Loads the model. Raises what prevents it."""
        check_cluster(is_insecure=is_insecure)
        args = llm_config.server_args()
        wanted = llm_config.engine_args()
        config = build_engine_config(wanted, "server")
        self._context = context_of_configs(args, [config])
        model = self._context.add_model(config.model.served_model_name)
        self._keys = keys
        log = request_log_choice(wanted, args.enable_log_outputs, args.max_log_len)
        parts = ModelLoader(args, log, args.engine_mode).build(config)
        assert parts.engine is not None
        self._engine, model.chat = parts.engine, parts.chat

    async def __serve_build_asgi_app__(self) -> Any:
        """The application that gets the requests."""
        model = self._context.model
        self._engine.bind()
        await model.adapters.load_all(self._engine, ())
        model.engine = self._engine
        if model.chat is not None:
            model.chat.start()
        return build_app(self._context, self._keys)

    def check_health(self) -> None:
        """Raises EngineDeadError if the engine has died: Ray Serve then replaces this replica."""
        health = self._engine.health()
        if health.state == "dead":
            raise EngineDeadError(health.reason)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Numbers that `scale_on_queue_seconds` reads."""
        return {
            QUEUE_SECONDS: self._engine.requests.expected_wait_s(),
            PLACES: float(self._engine.config.scheduler.max_num_seqs),
        }

    async def __del__(self) -> None:
        """Ray Serve calls it after the last request of a replica that is to end."""
        self._context.is_draining = self._context.is_stopping = True
        if self._context.model.chat is not None:
            self._context.model.chat.close()
        self._context.pool.close()
        await asyncio.to_thread(self._engine.shutdown)
