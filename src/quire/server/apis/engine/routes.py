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
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.errors import ConfigError, RequestError
from quire.metrics.http_metrics import SleepMetrics
from quire.redaction import environment, redacted
from quire.server.apis.engine import schema as schema
from quire.server.apis.engine.schema import ServerInfo, ServerInfoQuery, WorldSize, WorldSizeQuery
from quire.server.bodies.json_http import context_of, json_response, read_body, read_query
from quire.server.http.problems import HttpError, Problem
from quire.version import __version__

if TYPE_CHECKING:
    from quire.frontend.online.async_llm import AsyncLLM


async def sleep(http: Request) -> Response:
    """Pauses, then gives memory back: level 1 the KV cache's, level 2 the weights' too."""
    query, engine = read_query(http, schema.SleepQuery), _engine(http)
    with _metrics(http).record("sleep"), _mistakes():
        await engine.sleep(query.level, query.mode)
    return json_response(schema.SleepReply(level=query.level))


async def wake_up(http: Request) -> Response:
    """Takes memory again: all, or that of some tags."""
    query, engine = read_query(http, schema.WakeUpQuery), _engine(http)
    tags: list[str] | None = [*query.tags] or None
    with _metrics(http).record("wake"), _mistakes():
        is_awake = await engine.wake_up(tags)
    return json_response(schema.WakeUpReply("awake" if is_awake else "sleeping", tags))


async def is_sleeping(http: Request) -> Response:
    """Whether the engine is paused or has given memory back."""
    read_query(http, schema.NoQuery)
    return json_response(schema.IsSleeping(await _engine(http).is_sleeping()))


async def release_kv_cache_memory(http: Request) -> Response:
    """Gives the KV cache's memory back, in a pause."""
    read_query(http, schema.NoQuery)
    engine = _engine(http)
    with _metrics(http).record("release_kv_cache_memory"), _mistakes():
        await engine.release_kv_cache_memory()
    return json_response(schema.ReleaseReply())


async def pause(http: Request) -> Response:
    """Pauses generation: new requests wait."""
    query, engine = read_query(http, schema.PauseQuery), _engine(http)
    with _mistakes():
        await engine.pause_generation(mode=query.mode, clear_cache=query.clear_cache)
    return json_response(schema.PauseReply("paused"))


async def resume(http: Request) -> Response:
    """Ends a pause."""
    read_query(http, schema.NoQuery)
    with _mistakes():
        await _engine(http).resume_generation()
    return json_response(schema.PauseReply("resumed"))


async def is_paused(http: Request) -> Response:
    """Whether generation is paused."""
    read_query(http, schema.NoQuery)
    return json_response(schema.IsPaused(await _engine(http).is_paused()))


async def reset_prefix_cache(http: Request) -> Response:
    """Forgets all cached prompts."""
    query, engine = read_query(http, schema.ResetQuery), _engine(http)
    success = await engine.reset_prefix_cache(query.reset_running_requests, query.reset_external)
    return json_response(schema.ResetReply(success))


async def reset_mm_cache(http: Request) -> Response:
    """Forgets the rows of all images."""
    read_query(http, schema.NoQuery)
    await _engine(http).reset_mm_cache()
    return Response()


async def reset_encoder_cache(http: Request) -> Response:
    """Forgets the rows of all images."""
    read_query(http, schema.NoQuery)
    await _engine(http).reset_encoder_cache()
    return Response()


async def abort_requests(http: Request) -> Response:
    """Ends requests in flight, by the ids of their replies, or all of them."""
    body = await read_body(http, schema.AbortRequest)
    engine, wanted = _engine(http), set(body.request_ids or ())
    ids = [
        each
        for each in engine.requests.ids()
        if not wanted or each in wanted or each.rpartition("-")[0] in wanted
    ]  # a reply's prompts are called ID-0, ID-1, ...
    await engine.abort(ids)
    return json_response(schema.AbortReply(aborted=len(ids)))


async def collective_rpc(http: Request) -> Response:
    """Calls a public method of the worker, by its name."""
    call = await read_body(http, schema.WorkerCall)
    engine = _engine(http)
    try:
        with _mistakes():
            values = await engine.collective_rpc(call.method, call.timeout, call.args, call.kwargs)
    except asyncio.TimeoutError:
        message = f"{call.method[:100]} has not returned within {call.timeout:g} s; it goes on"
        raise HttpError(Problem(504, message, param="timeout")) from None
    shown = [one if one is None or isinstance(one, (dict, list)) else str(one) for one in values]
    return json_response(schema.WorkerReply(shown))


async def start_profile(http: Request) -> Response:
    """Records the engine's steps, until /stop_profile."""
    engine = _engine(http)
    is_empty = not await http.body()
    wanted = schema.StartProfile() if is_empty else await read_body(http, schema.StartProfile)
    with _mistakes():
        await engine.start_profile(
            wanted.profile_prefix,
            delay_iterations=wanted.delay_iterations,
            max_iterations=wanted.max_iterations,
        )
    return Response()


async def stop_profile(http: Request) -> Response:
    """Writes what was recorded since /start_profile."""
    with _mistakes():
        await _engine(http).stop_profile()
    return Response()


def _engine(http: Request) -> AsyncLLM:
    return context_of(http).model.live_engine()


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


async def server_info(http: Request) -> Response:
    """The engine's configuration, its environment variables, and the machine."""
    form = read_query(http, ServerInfoQuery).config_format
    config = context_of(http).model.config
    shown = str(config) if form == "text" else msgspec.to_builtins(config, enc_hook=str)
    info = ServerInfo(
        vllm_config=redacted(shown),
        vllm_env=environment(_PREFIXES),
        system_env=await asyncio.to_thread(_system),
    )
    return json_response(info)


async def get_world_size(http: Request) -> Response:
    """How many processes compute one step: one."""
    read_query(http, WorldSizeQuery)
    return json_response(WorldSize(world_size=1))


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
