"""The routes that control the engine: sleep, pause, aborts, caches, calls of the worker. For
development: they exist only where they are switched on.
"""

from __future__ import annotations

import asyncio
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request

from quire.config import EngineConfig
from quire.errors import ConfigError, RequestError
from quire.metrics.sleep_metrics import SleepMetrics
from quire.redacted_settings import environment, redacted
from quire.server.apis.engine import schema as schema
from quire.server.apis.engine.schema import ServerInfo, ServerInfoQuery, WorldSize, WorldSizeQuery
from quire.server.bodies.json_http import queried_model, read_body
from quire.server.endpoint import BAD_BODY
from quire.server.http.problems import HttpError, Problem
from quire.server.routing import Routes
from quire.version import __version__

if TYPE_CHECKING:
    from quire.frontend.online.async_llm import AsyncLLM


ROUTES = Routes("development", "dev")


@ROUTES.on("POST", "/sleep")
async def sleep(http: Request, query: schema.SleepQuery) -> schema.SleepReply:
    """Pauses, then gives memory back: level 1 the KV cache's, level 2 the weights' too."""
    engine = _engine(http)
    with _metrics(http).record("sleep"), _mistakes():
        await engine.sleep(query.level, query.mode)
    return schema.SleepReply(level=query.level)


@ROUTES.on("POST", "/wake_up")
async def wake_up(http: Request, query: schema.WakeUpQuery) -> schema.WakeUpReply:
    """Takes memory again: all, or that of some tags."""
    engine = _engine(http)
    tags: list[str] | None = [*query.tags] or None
    with _metrics(http).record("wake"), _mistakes():
        is_awake = await engine.wake_up(tags)
    return schema.WakeUpReply("awake" if is_awake else "sleeping", tags)


@ROUTES.on("GET", "/is_sleeping")
async def is_sleeping(http: Request) -> schema.IsSleeping:
    """Whether the engine is paused or has given memory back."""
    return schema.IsSleeping(await _engine(http).is_sleeping())


@ROUTES.on("POST", "/release_kv_cache_memory")
async def release_kv_cache_memory(http: Request) -> schema.ReleaseReply:
    """Gives the KV cache's memory back, in a pause."""
    engine = _engine(http)
    with _metrics(http).record("release_kv_cache_memory"), _mistakes():
        await engine.release_kv_cache_memory()
    return schema.ReleaseReply()


@ROUTES.on("POST", "/pause")
async def pause(http: Request, query: schema.PauseQuery) -> schema.PauseReply:
    """Pauses generation: new requests wait."""
    engine = _engine(http)
    with _mistakes():
        await engine.pause_generation(mode=query.mode, clear_cache=query.clear_cache)
    return schema.PauseReply("paused")


@ROUTES.on("POST", "/resume")
async def resume(http: Request) -> schema.PauseReply:
    """Ends a pause."""
    with _mistakes():
        await _engine(http).resume_generation()
    return schema.PauseReply("resumed")


@ROUTES.on("GET", "/is_paused")
async def is_paused(http: Request) -> schema.IsPaused:
    """Whether generation is paused."""
    return schema.IsPaused(await _engine(http).is_paused())


@ROUTES.on("POST", "/reset_prefix_cache")
async def reset_prefix_cache(http: Request, query: schema.ResetQuery) -> schema.ResetReply:
    """Forgets all cached prompts."""
    engine = _engine(http)
    success = await engine.reset_prefix_cache(query.reset_running_requests, query.reset_external)
    return schema.ResetReply(success)


@ROUTES.on("POST", "/reset_mm_cache")
async def reset_mm_cache(http: Request) -> None:
    """Forgets the rows of all images."""
    await _engine(http).reset_mm_cache()


@ROUTES.on("POST", "/reset_encoder_cache")
async def reset_encoder_cache(http: Request) -> None:
    """Forgets the rows of all images."""
    await _engine(http).reset_encoder_cache()


@ROUTES.on("POST", "/abort_requests")
async def abort_requests(http: Request, body: schema.AbortRequest) -> schema.AbortReply:
    """Ends requests in flight, by the ids of their replies, or all of them."""
    engine, wanted = _engine(http), set(body.request_ids or ())
    ids = [
        each
        for each in engine.requests.ids()
        if not wanted or each in wanted or each.rpartition("-")[0] in wanted
    ]  # a reply's prompts are called ID-0, ID-1, ...
    await engine.abort(ids)
    return schema.AbortReply(aborted=len(ids))


@ROUTES.on("POST", "/collective_rpc", errors=(*BAD_BODY, 500, 504))
async def collective_rpc(http: Request, call: schema.WorkerCall) -> schema.WorkerReply:
    """Calls a public method of the worker, by its name."""
    engine = _engine(http)
    try:
        with _mistakes():
            values = await engine.collective_rpc(call.method, call.timeout, call.args, call.kwargs)
    except asyncio.TimeoutError:
        message = f"{call.method[:100]} has not returned within {call.timeout:g} s; it goes on"
        raise HttpError(Problem(504, message, param="timeout")) from None
    shown = [one if one is None or isinstance(one, (dict, list)) else str(one) for one in values]
    return schema.WorkerReply(shown)


@ROUTES.on("POST", "/start_profile", request=schema.StartProfile, switch="profiler")
async def start_profile(http: Request) -> None:
    """Records the engine's steps, until /stop_profile."""
    engine = _engine(http)
    is_empty = not await http.body()
    wanted = schema.StartProfile() if is_empty else await read_body(http, schema.StartProfile)
    with _mistakes():
        await engine.start_profile(
            wanted.profile_prefix,
            delay_iterations=wanted.delay_iterations,
            max_iterations=wanted.max_iterations,
            profiler_kwargs=wanted.profiler_kwargs,
        )


@ROUTES.on("POST", "/stop_profile", switch="profiler")
async def stop_profile(http: Request) -> None:
    """Writes what was recorded since /start_profile."""
    with _mistakes():
        await _engine(http).stop_profile()


def _engine(http: Request) -> AsyncLLM:
    return queried_model(http).live_engine()


def _metrics(http: Request) -> SleepMetrics:
    metrics: SleepMetrics = http.app.state.sleep_metrics
    return metrics


@contextmanager
def _mistakes() -> Iterator[None]:
    """Answers 400 if the engine cannot do what the caller asked for."""
    try:
        yield
    except ConfigError as error:
        raise RequestError(str(error)) from None


_PREFIXES = ("QUIRE_", "VLLM_")
_LIBRARIES = ("numpy", "msgspec", "tokenizers", "jinja2", "starlette", "uvloop")


@ROUTES.on("GET", "/server_info")
async def server_info(http: Request, query: ServerInfoQuery) -> ServerInfo:
    """The engine's configuration, its environment variables, and the machine. With
    `config_format=json`, the parts of the configuration have vLLM's names."""
    config = queried_model(http).config
    shown = str(config) if query.config_format == "text" else _under_vllm_names(config)
    return ServerInfo(
        vllm_config=redacted(shown),
        vllm_env=environment(_PREFIXES),
        system_env=await asyncio.to_thread(_system),
    )


def _under_vllm_names(config: EngineConfig) -> dict[str, Any]:
    """The configuration as JSON values. What vLLM also has, has vLLM's name."""
    parts: dict[str, Any] = {
        f"{name}_config" if hasattr(config, f"{name}_config") else name: value
        for name, value in msgspec.to_builtins(config, enc_hook=str).items()
    }
    cache, asked = parts["cache_config"], config.cache.asked
    cache |= {"num_gpu_blocks": cache.pop("num_blocks"), "cache_dtype": cache.pop("kv_cache_dtype")}
    cache["gpu_memory_utilization"] = asked.utilization
    parts["speculative_config"] = parts["scheduler_config"].pop("speculation")
    parts["model_config"]["tokenizer"] = config.model.tokenizer
    parts["parallel_config"]["world_size"] = config.parallel.world_size
    return parts


@ROUTES.on("GET", "/get_world_size")
async def get_world_size(http: Request, query: WorldSizeQuery) -> WorldSize:
    """The number of ranks, of all engines or of one."""
    parallel = queried_model(http).config.parallel
    return WorldSize(
        world_size=parallel.world_size_across_dp if query.include_dp else parallel.world_size
    )


@lru_cache(maxsize=1)
def _system() -> dict[str, str | None]:
    """The machine and the libraries, under the names of vLLM's `collect-env` where it has them."""
    libc, version = platform.libc_ver()
    return {
        "quire_version": __version__,
        "os": platform.platform(),
        "libc_version": f"{libc}-{version}" if libc else None,
        "python_version": f"{platform.python_version()} ({8 * struct.calcsize('P')}-bit runtime)",
        "python_platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu_info": f"{os.cpu_count()} x {_processor()}",
        **{f"{name}_version": _version(name) for name in _LIBRARIES},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(name: str) -> str | None:
    import importlib.metadata  # takes some milliseconds

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
