"""`vllm.envs`: the environment variables of vLLM that scripts read.

A value is that of the environment variable if it is set, otherwise Quire's default. Variables of
vLLM without effect in Quire are unknown here; `tables/variables.json` lists all.
"""

from __future__ import annotations

import os
from typing import Any

from quire.errors import ConfigError, quoted
from quire.units import MiB
from quire.vllm.missing import explain

_LAST_PORT = 65535

_DEFAULTS: dict[str, bool | int | float | str] = {
    "VLLM_API_KEY": "",
    "VLLM_BATCH_INVARIANT": True,
    "VLLM_CHAT_TEMPLATE_RENDER_TIMEOUT": 30.0,
    "VLLM_CONFIGURE_LOGGING": True,
    "VLLM_CPU_KVCACHE_SPACE": 0,
    "VLLM_CPU_NUM_OF_RESERVED_CPU": 0,
    "VLLM_CPU_OMP_THREADS_BIND": "auto",
    "VLLM_DO_NOT_TRACK": True,
    "VLLM_ENABLE_V1_MULTIPROCESSING": False,
    "VLLM_HOST_IP": "",
    "VLLM_HTTP_MAX_REQUEST_BODY_SIZE": 16 * MiB,
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": 5,
    "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": True,
    "VLLM_LOGGING_CONFIG_PATH": "",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_LOG_STATS_INTERVAL": 10.0,
    "VLLM_MAX_COMPLETION_PROMPTS": 1024,
    "VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB": 256,
    "VLLM_MAX_N_SEQUENCES": 16384,
    "VLLM_MAX_NUM_BAD_WORDS": 128,
    "VLLM_MAX_STOP_STRINGS": 16,
    "VLLM_NO_USAGE_STATS": True,
    "VLLM_PORT": 0,
    "VLLM_RAY_BUNDLE_INDICES": "",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": False,
    "VLLM_LORA_RESOLVER_CACHE_DIR": "",
    "VLLM_SERVER_DEV_MODE": False,
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_TORCH_PROFILER_DIR": "",
    "VLLM_USE_MODELSCOPE": False,
    "VLLM_USE_RUST_FRONTEND": False,
    "VLLM_USE_V1": True,
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
_NONE_IF_UNSET = {
    "VLLM_API_KEY", "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_NUM_OF_RESERVED_CPU",
    "VLLM_LOGGING_CONFIG_PATH", "VLLM_LORA_RESOLVER_CACHE_DIR", "VLLM_TORCH_PROFILER_DIR",
}  # fmt: skip


def is_set(name: str) -> bool:
    """Whether the environment has this variable. Raises AttributeError for an unknown one."""
    if name not in _DEFAULTS:
        raise AttributeError(explain(f"vllm.envs.{name}"))
    return name in os.environ


def get_vllm_port() -> int | None:
    """Return `VLLM_PORT`, or None if it is not set. Raises ConfigError, a ValueError, unless it is
    a port: Kubernetes sets it to a URI for a service named `vllm`."""
    text = os.environ.get("VLLM_PORT")
    if text is None:
        return None
    if text.isascii() and text.isdigit() and int(text[:6]) <= _LAST_PORT:
        return int(text)
    if "://" in text:
        raise ConfigError(
            f"VLLM_PORT={quoted(text)} appears to be a URI, which Kubernetes sets for a service of "
            "the name vllm; give the service another name, or unset the variable"
        )
    raise ConfigError(f"VLLM_PORT={quoted(text)} must be a valid integer, a port; unset it for any")


def __getattr__(name: str) -> Any:
    if name not in _DEFAULTS:
        raise AttributeError(explain(f"vllm.envs.{name}"))
    if name == "VLLM_PORT":
        return get_vllm_port()
    default = _DEFAULTS[name]
    text = os.environ.get(name)
    if text is None:
        return None if name in _NONE_IF_UNSET else default
    if isinstance(default, bool):
        return text.strip().lower() in ("1", "true")
    return type(default)(text)


def __dir__() -> list[str]:
    return sorted({*globals(), *_DEFAULTS})
