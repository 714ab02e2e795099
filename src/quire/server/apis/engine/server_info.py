"""`/server_info`: the configuration, the environment and the machine, for those who look for a
cause, without secrets (`quire.redaction`).
"""

from __future__ import annotations

import asyncio
import os
import platform
import struct
from functools import lru_cache
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.redaction import environment, redacted
from quire.server.apis.engine.schema import ServerInfo, ServerInfoQuery, WorldSize, WorldSizeQuery
from quire.server.bodies.json_http import context_of, json_response
from quire.server.bodies.query import read_query
from quire.version import __version__

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
