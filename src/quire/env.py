"""The few environment variables that Quire reads, all in one place.

Each is a way to force a choice that is otherwise made from the machine; none is
needed for a good result. Read at call time, so that tests can set them.
"""

from __future__ import annotations

import os
from pathlib import Path


def forced_isa() -> str | None:
    """`QUIRE_ISA`: the instruction-set tier of the CPU backend, e.g. `avx2`; `None`: the best."""
    return os.environ.get("QUIRE_ISA") or None


def forced_threads() -> int | None:
    """`QUIRE_THREADS`: compute threads; `None`: from affinity and the cgroup's quota."""
    value = os.environ.get("QUIRE_THREADS")
    return int(value) if value else None


def forced_backend() -> str | None:
    """`QUIRE_BACKEND`: `cpu` or `reference`; `None`: the best that loads."""
    return os.environ.get("QUIRE_BACKEND") or None


def log_level() -> str:
    """`QUIRE_LOG_LEVEL`: `DEBUG`, `INFO` (default), `WARNING`, `ERROR`."""
    return os.environ.get("QUIRE_LOG_LEVEL", "INFO").upper()


def stats_interval_s() -> float:
    """`QUIRE_LOG_STATS_INTERVAL`: seconds between two statistics lines; 10 by default."""
    return float(os.environ.get("QUIRE_LOG_STATS_INTERVAL", "10"))


def cache_dir() -> Path:
    """Where Quire keeps what it need not find out twice: `quire` in `XDG_CACHE_HOME`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "quire"


def hub_is_offline() -> bool:
    """`HF_HUB_OFFLINE`, as huggingface_hub understands it."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def hub_cache_dir() -> Path:
    """Where huggingface_hub keeps models: `HF_HUB_CACHE`, or `hub` in `HF_HOME`."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache).expanduser()
    user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(user_cache, "huggingface")
    return Path(home).expanduser() / "hub"


def otlp_traces_endpoint() -> str | None:
    """`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`: where traces go, unless an argument says."""
    return os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or None


def otlp_protocol() -> str | None:
    """`OTEL_EXPORTER_OTLP_TRACES_PROTOCOL`, or the same for all signals; `None`: by the URL."""
    names = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    return next((os.environ[name] for name in names if os.environ.get(name)), None)
