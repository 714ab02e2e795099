"""The endpoints of SGLang that routers read: facts about the server and the model, and the load.

The `kv_aware` policy of `vllm-router` reads the size of a KV block here, `sglang-router` the name
of the model and the load.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request

from quire.server.bodies.json_http import queried_model
from quire.server.requests.fields import Count
from quire.server.routing import Routes
from quire.version import __version__


class ServerFacts(msgspec.Struct, kw_only=True):
    """The served model and the limits of its engine."""

    model_id: str
    served_model_name: str
    model_path: str
    tokenizer_path: str | None
    version: str = __version__
    dp_size: Count
    """Engines that compute requests side by side."""
    context_length: Count
    kv_block_size: Count
    """Tokens of a block, as KV events have it."""
    effective_attention_block_size: Count
    page_size: Count
    max_total_num_tokens: Count
    """Tokens that the KV cache of one engine has room for."""
    max_running_requests: Count
    max_prefill_tokens: Count
    """Tokens of a step."""


class ModelFacts(msgspec.Struct, kw_only=True):
    """The served model."""

    model_path: str
    tokenizer_path: str | None
    is_generation: bool
    served_model_name: str
    model_type: str | None
    architectures: list[str]


class EngineLoad(msgspec.Struct, kw_only=True):
    """Requests and tokens that are in the server."""

    dp_rank: Count = 0
    num_reqs: Count
    """Running and waiting requests of all engines."""
    num_waiting_reqs: Count
    num_tokens: Count
    """Tokens whose K/V running requests hold."""


ROUTES = Routes("server")


@ROUTES.on("GET", "/get_server_info")
async def get_server_info(http: Request) -> ServerFacts:
    """The served model and the limits of its engine, under SGLang's names."""
    served = queried_model(http)
    config = served.config
    cache, scheduler = config.cache, config.scheduler
    return ServerFacts(
        model_id=served.names[0],
        served_model_name=served.names[0],
        model_path=config.model.model,
        tokenizer_path=config.model.tokenizer,
        dp_size=config.parallel.data_parallel_size,
        context_length=config.model.max_model_len,
        kv_block_size=cache.block_size,
        effective_attention_block_size=cache.block_size,
        page_size=cache.block_size,
        max_total_num_tokens=cache.num_blocks * cache.block_size,
        max_running_requests=scheduler.max_num_seqs,
        max_prefill_tokens=scheduler.max_num_batched_tokens,
    )


@ROUTES.on("GET", "/get_model_info", "/model_info")
async def get_model_info(http: Request) -> ModelFacts:
    """The served model, under SGLang's names."""
    served = queried_model(http)
    model = served.config.model
    hf_config = model.hf_config
    return ModelFacts(
        model_path=model.model,
        tokenizer_path=model.tokenizer,
        is_generation=model.pooling is None,
        served_model_name=served.names[0],
        model_type=hf_config.get("model_type"),
        architectures=list(hf_config.get("architectures") or ()),
    )


@ROUTES.on("GET", "/get_load", for_operator=True)
async def get_load(http: Request) -> list[EngineLoad]:
    """Requests and tokens that are in the server, under SGLang's names. Data-parallel engines are
    one entry, because every router adds the entries up."""
    served = queried_model(http)
    stats, cache = served.live_engine().metrics.latest, served.config.cache
    num_engines = served.config.parallel.data_parallel_size
    num_slots = cache.num_blocks * cache.block_size * num_engines
    return [
        EngineLoad(
            num_reqs=stats.num_running + stats.num_waiting,
            num_waiting_reqs=stats.num_waiting,
            num_tokens=round(stats.kv_cache_usage * num_slots),
        )
    ]
