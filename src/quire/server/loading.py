"""What a server makes of its configuration: the context of its routes, and the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire import env
from quire.chat.async_renderer import AsyncChatRenderer, RenderBounds
from quire.chat.process.renderer_process import CLOCK_FACTOR
from quire.chat.templates import ChatTemplates
from quire.config import EngineConfig
from quire.core.parallel.restarts import DEFAULT_RESTARTS
from quire.frontend.observers.request_log import RequestLogChoice
from quire.log import get_logger
from quire.server.args import ServerArgs
from quire.server.context import ServerContext

if TYPE_CHECKING:
    from quire.frontend.online.async_llm import AsyncLLM

logger = get_logger(__name__)


def make_context(args: ServerArgs, config: EngineConfig) -> ServerContext:
    """The context, with a model whose engine is not loaded yet."""
    has_adapters = config.lora is not None and env.allows_loading_adapters()
    if has_adapters and not args.lora_folders:
        logger.warning(
            "callers may load adapters from any folder; name folders with --lora-folders"
        )
    has_profiler = config.observability.profiler is not None
    context = ServerContext(args, has_profiler, config.kv_store is not None, has_adapters)
    context.add_model(config.model.served_model_name)
    return context


def load_engine(
    config: EngineConfig, context: ServerContext, request_log: RequestLogChoice | None
) -> AsyncLLM:
    """Loads the engine of the context's model, and gives the model its chat templates."""
    # Imported here, because it imports all that plans a model.
    from quire.frontend.online.async_llm import AsyncLLM

    args = context.args
    engine = AsyncLLM(
        config,
        engine_mode=args.engine_mode,
        step_timeout_s=args.step_timeout,
        max_engine_restarts=_max_restarts(args, config),
        request_log=request_log,
    )
    if engine.tokenizer is not None:
        seconds, num_waiting = args.template_timeout, args.max_waiting_chats
        context.model.chat = AsyncChatRenderer(
            ChatTemplates.of_model(config.model, engine.tokenizer.roles),
            RenderBounds(seconds, num_waiting, CLOCK_FACTOR * seconds),
        )
    return engine


def _max_restarts(args: ServerArgs, config: EngineConfig) -> int:
    if args.max_engine_restarts is not None:
        return args.max_engine_restarts
    return DEFAULT_RESTARTS if config.parallel.world_size_across_dp > 1 else 0
