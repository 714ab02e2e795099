"""The servers of an application: a `Replica` has an engine of its own, an `Ingress` uses those of
other deployments."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette

from quire.config import EngineConfig
from quire.core.client import EngineCoreClient
from quire.core.loop import SWITCH_INTERVAL_S
from quire.core.process_channel import boot_decoder
from quire.errors import EngineDeadError
from quire.frontend.observers.observer import request_log_choice
from quire.planning.plan import build_engine_config
from quire.ray.serve.access import check_cluster
from quire.ray.serve.autoscaling import OPEN_REQUESTS, PLACES, QUEUE_SECONDS
from quire.ray.serve.config import LLMConfig
from quire.server.app import build_app
from quire.server.context import ServerContext
from quire.server.fleet.live_models import context_of_configs
from quire.server.fleet.loading import ModelLoader
from quire.server.http.body_deadline import BodyDeadline
from quire.server.served_adapters import served_modules

if TYPE_CHECKING:
    from quire.ray.serve.replica_group import ReplicaGroup
    from quire.ray.serve.replicas import Replicas


def served_app(context: ServerContext, keys: tuple[str, ...]) -> Starlette:
    """The application, with the limits that Quire's own HTTP server has for a connection."""
    app = build_app(context, keys)
    app.add_middleware(BodyDeadline, seconds=context.args.body_timeout)
    return app


class Server:
    """Ray Serve makes it in a process of its own, sends HTTP requests to its application, and asks
    for its health."""

    _context: ServerContext

    def _open(self, configs: Sequence[EngineConfig]) -> None:
        self._context = context_of_configs(self._llm_configs[0].server_args(), configs)

    def __init__(
        self, llm_configs: Sequence[LLMConfig], keys: tuple[str, ...], *, is_insecure: bool
    ) -> None:
        check_cluster(is_insecure=is_insecure)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._llm_configs = llm_configs
        self._keys = keys

    async def _load(
        self, llm_config: LLMConfig, config: EngineConfig, client: EngineCoreClient | None = None
    ) -> None:
        """Adds a model to those that are served. Raises what prevents it."""
        args, wanted = llm_config.server_args(), llm_config.engine_args()
        log = request_log_choice(wanted, args.enable_log_outputs, args.max_log_len)
        names = config.model.served_model_name
        model = self._context.add_model(names, args)
        loader = ModelLoader(args, log, args.engine_mode, client)
        await loader.load(model, config, served_modules(args, names, config))

    def check_health(self) -> None:
        """Raises EngineDeadError if an engine has died: Ray Serve then replaces this replica."""
        for model in self._context.models:
            if model.engine is not None and model.engine.errored:
                raise EngineDeadError(str(model.engine.dead_error))

    async def __del__(self) -> None:
        """Ray Serve calls it after the last request of a replica that is to end."""
        self._context.is_draining = self._context.is_stopping = True
        self._context.pool.close()
        for model in self._context.models:
            if model.chat is not None:
                model.chat.close()
            if model.engine is not None:
                await asyncio.to_thread(model.engine.shutdown)


class Replica(Server):
    """A server with an engine, which Ray Serve's proxies choose for each HTTP request."""

    def __init__(
        self, llm_config: LLMConfig, keys: tuple[str, ...], *, is_insecure: bool = False
    ) -> None:
        """Raises what prevents a plan for the model."""
        super().__init__([llm_config], keys, is_insecure=is_insecure)
        self._config = build_engine_config(llm_config.engine_args(), "server")
        self._open([self._config])

    async def __serve_build_asgi_app__(self) -> Any:
        """The application that gets the requests, with the model loaded."""
        await self._load(self._llm_configs[0], self._config)
        return served_app(self._context, self._keys)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Numbers that `scale_on_queue_seconds` reads."""
        engine = self._context.model.loaded_engine()
        return {
            QUEUE_SECONDS: engine.requests.expected_wait_s(),
            PLACES: float(self._config.scheduler.max_num_seqs),
            OPEN_REQUESTS: float(engine.requests.num_unfinished),
        }


class Ingress(Server):
    """A server that has the tokenizers and chat templates of its models. The engines of each are
    the replicas of a deployment, of which it chooses one for each request."""

    def __init__(
        self,
        llm_configs: Sequence[LLMConfig],
        engines: Sequence[Any],
        keys: tuple[str, ...],
        prefill: Any = None,
        *,
        is_insecure: bool = False,
    ) -> None:
        """`engines`: a handle for each configuration. `prefill`: the handle of engines that compute
        the prompts of the only one."""
        super().__init__(llm_configs, keys, is_insecure=is_insecure)
        self._engines = engines
        self._prefill = prefill

    async def __serve_build_asgi_app__(self) -> Any:
        """The application that gets the requests, when each model has a replica."""
        from quire.ray.serve.replica_group import ReplicaGroup
        from quire.ray.serve.replicas import Replicas

        every = [Replicas(handle) for handle in self._engines]
        boots = await asyncio.gather(*(one.config() for one in every))
        configs = [boot_decoder.decode(boot).config for boot in boots]
        self._open(configs)
        for llm_config, config, replicas in zip(self._llm_configs, configs, every, strict=True):
            if self._prefill is None:
                group = ReplicaGroup(config, replicas)
            else:
                group = await self._decode_group(config, replicas)
            await self._load(llm_config, config, group)
        return served_app(self._context, self._keys)

    async def _decode_group(self, config: EngineConfig, replicas: Replicas) -> ReplicaGroup:
        """Raises ConfigError."""
        from quire.ray.serve.prefill_decode import DecodeGroup, PrefillGroup, check_hand_off
        from quire.ray.serve.replicas import Replicas

        others = Replicas(self._prefill)
        of_prompts = boot_decoder.decode(await others.config()).config
        check_hand_off(of_prompts, config)
        return DecodeGroup(config, replicas, PrefillGroup(of_prompts, others))
