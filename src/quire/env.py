"""The few environment variables that Quire reads, all in one place.

Each overrides a choice that is otherwise made from the machine; none is needed. They are read at
call time, so that tests can set them. An invalid value is a ConfigError that names the variable.
"""

from __future__ import annotations

import os
from pathlib import Path

from quire.errors import ConfigError, quoted

MAX_THREADS = 1024
"""More compute threads than any machine has cores."""
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_MAX_INTERVAL_S = 1e9


def forced_isa() -> str | None:
    """`QUIRE_ISA`: the instruction-set tier of the CPU backend, e.g. `avx2`; `None`: the best."""
    return os.environ.get("QUIRE_ISA") or None


def forced_threads() -> int | None:
    """`QUIRE_THREADS`: compute threads; `None`: from affinity and the cgroup's quota."""
    value = os.environ.get("QUIRE_THREADS")
    if not value:
        return None
    if value.isascii() and value.isdigit() and 1 <= int(value[:9]) <= MAX_THREADS:
        return int(value)
    raise ConfigError(
        f"QUIRE_THREADS must be a whole number from 1 to {MAX_THREADS}, got {quoted(value)}; "
        "unset it for the machine's cores"
    )


def forced_backend() -> str | None:
    """`QUIRE_BACKEND`: `cpu` or `reference`; `None`: the best that loads."""
    return os.environ.get("QUIRE_BACKEND") or None


def log_level() -> str:
    """`QUIRE_LOG_LEVEL`: `DEBUG`, `INFO` (default), `WARNING`, `ERROR`."""
    value = os.environ.get("QUIRE_LOG_LEVEL") or "INFO"
    if value.upper() in _LOG_LEVELS:
        return value.upper()
    levels = ", ".join(_LOG_LEVELS)
    raise ConfigError(f"QUIRE_LOG_LEVEL={quoted(value)} is not a level; use one of {levels}")


def stats_interval_s() -> float:
    """`QUIRE_LOG_STATS_INTERVAL`: seconds between two statistics lines; 10 by default."""
    value = os.environ.get("QUIRE_LOG_STATS_INTERVAL") or "10"
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if 0 < seconds <= _MAX_INTERVAL_S:
        return seconds
    raise ConfigError(
        f"QUIRE_LOG_STATS_INTERVAL must be a positive number of seconds, got {quoted(value)}; "
        "try 10"
    )


def cache_dir() -> Path:
    """Quire's cache directory: `quire` in `XDG_CACHE_HOME`. Raises RuntimeError without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "quire"


def hub_is_offline() -> bool:
    """`HF_HUB_OFFLINE`, as huggingface_hub understands it."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def hub_cache_dir() -> Path:
    """huggingface_hub's cache of models: `HF_HUB_CACHE`, or `hub` in `HF_HOME`."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return expanded(cache)
    user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(user_cache, "huggingface")
    return expanded(home) / "hub"


def expanded(path: str) -> Path:
    """The path with `~` as the home directory. Raises ConfigError where a user has none."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{quoted(path)}: this user has no home directory; set HOME, or give a path without ~ "
            "(HF_HOME is where models of the hub are kept)"
        ) from None


def server_dev_mode() -> bool:
    """`VLLM_SERVER_DEV_MODE`: whether a server has routes for development."""
    value = os.environ.get("VLLM_SERVER_DEV_MODE", "").strip().lower()
    return value not in {"", "0", "false", "no", "off"}


def otlp_traces_endpoint() -> str | None:
    """`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`: where traces go, unless an argument is set."""
    return os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or None


def otlp_protocol() -> str | None:
    """`OTEL_EXPORTER_OTLP_TRACES_PROTOCOL`, or the same for all signals; `None`: by the URL."""
    names = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    return next((os.environ[name] for name in names if os.environ.get(name)), None)
