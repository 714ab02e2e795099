"""The environment variables that Quire reads, all in one place.

Each overrides a default that is derived from the machine; none is required. They are read at call
time, so that tests can set them. An invalid value raises a ConfigError that names the variable. If
vLLM has an equivalent variable, it is read after Quire's own; `config/vllm_variables.py` knows all
of vLLM's.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

from quire.errors import ConfigError, quoted
from quire.units import GiB, MiB

MAX_THREADS = 1024
"""Upper limit of compute threads; above the core count of any machine."""
RANK_CERTIFICATES = ("QUIRE_RANK_CERT", "QUIRE_RANK_CERT_KEY", "QUIRE_RANK_CA")
"""The variables of `rank_certificates`."""
OWN_VARIABLES = (
    "QUIRE_API_KEY", "QUIRE_BACKEND", "QUIRE_CUDA_EMULATED", "QUIRE_ISA", "QUIRE_KV_STORE",
    "QUIRE_LOG_LEVEL", "QUIRE_LOG_STATS_INTERVAL", "QUIRE_OPERATOR_API_KEY", *RANK_CERTIFICATES,
    "QUIRE_RANK_KEY", "QUIRE_THREADS",
)  # fmt: skip
"""Those that no other program has."""
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_FALSE = frozenset({"", "0", "false", "no", "off"})
_MAX_INTERVAL_S = 1e9
_MAX_BYTES = 1 << 60
_MAX_DIGITS = 9


def is_true(name: str) -> bool:
    """Whether a switch of vLLM is on: any value except empty, 0, false, no and off."""
    return os.environ.get(name, "").strip().lower() not in _FALSE


def forced_isa() -> str | None:
    """`QUIRE_ISA`: the instruction-set tier of the CPU backend, e.g. `avx2`; None: the best one."""
    return os.environ.get("QUIRE_ISA") or None


def forced_threads() -> int | None:
    """`QUIRE_THREADS`: number of compute threads; None: from affinity and the cgroup's quota."""
    rule = f"a whole number from 1 to {MAX_THREADS}"
    return _whole("QUIRE_THREADS", rule, "unset it to use the machine's cores", most=MAX_THREADS)


def _whole(name: str, rule: str, hint: str, least: int = 1, most: int = 10**9) -> int | None:
    value = os.environ.get(name, "").strip()
    if not value:
        return None
    if value.isascii() and value.isdigit() and least <= int(value[:_MAX_DIGITS]) <= most:
        return int(value[:_MAX_DIGITS])
    raise ConfigError(f"{name} must be {rule}, got {quoted(value)}; {hint}")


def forced_backend() -> str | None:
    """`QUIRE_BACKEND`: the backend, such as `cpu` or `reference`; None: the best one that loads."""
    return os.environ.get("QUIRE_BACKEND") or None


def cuda_is_emulated() -> bool:
    """`QUIRE_CUDA_EMULATED`: whether NumPy takes the place of the GPU of the `cuda` backend, for
    tests."""
    return is_true("QUIRE_CUDA_EMULATED")


def log_level() -> str:
    """`QUIRE_LOG_LEVEL` or `VLLM_LOGGING_LEVEL`: `DEBUG`, `INFO` (default), `WARNING`, `ERROR`."""
    name, value = _first_set("QUIRE_LOG_LEVEL", "VLLM_LOGGING_LEVEL")
    if not value:
        return "INFO"
    if value.upper() in _LOG_LEVELS:
        return value.upper()
    levels = ", ".join(_LOG_LEVELS)
    raise ConfigError(f"{name}={quoted(value)} must be one of {levels}")


def log_config_file() -> str | None:
    """`VLLM_LOGGING_CONFIG_PATH`: a JSON file for `logging.config.dictConfig`."""
    return os.environ.get("VLLM_LOGGING_CONFIG_PATH") or None


def configures_logging() -> bool:
    """`VLLM_CONFIGURE_LOGGING`: False if the application configures logging."""
    return "VLLM_CONFIGURE_LOGGING" not in os.environ or is_true("VLLM_CONFIGURE_LOGGING")


def stats_interval_s() -> float:
    """`QUIRE_LOG_STATS_INTERVAL` or `VLLM_LOG_STATS_INTERVAL`: seconds between statistics lines; 10
    by default, and if vLLM's variable is not positive."""
    name, value = _first_set("QUIRE_LOG_STATS_INTERVAL", "VLLM_LOG_STATS_INTERVAL")
    try:
        seconds = float(value or "10")
    except ValueError:
        seconds = math.nan
    if seconds <= 0 and name.startswith("VLLM_"):
        return 10.0
    if 0 < seconds <= _MAX_INTERVAL_S:
        return seconds
    raise ConfigError(f"{name} must be a positive number of seconds, got {quoted(value)}; try 10")


def _first_set(*names: str) -> tuple[str, str]:
    """The first non-empty variable and its value; otherwise the last name and an empty text."""
    return next(
        ((name, os.environ[name]) for name in names if os.environ.get(name)), (names[-1], "")
    )


def kv_cache_bytes() -> int | None:
    """`VLLM_CPU_KVCACHE_SPACE`, a size in GiB, in bytes; None if it is not set or 0."""
    value = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "").strip()
    try:
        size = float(value or "0") * GiB
    except ValueError:
        size = math.nan
    if not 0 <= size < _MAX_BYTES:
        raise ConfigError(
            f"VLLM_CPU_KVCACHE_SPACE must be a number of GiB, got {quoted(value)}; try 4"
        )
    return int(size) or None


def compute_cores() -> tuple[int, ...] | None:
    """`VLLM_CPU_OMP_THREADS_BIND`: the cores of the compute threads; None: those of the process.

    Written as `0-3`, `0,2` or `0-3,8`; `auto` and `nobind` select no cores.
    """
    value = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "").strip()
    if value in ("", "auto", "nobind"):
        return None
    cores: set[int] = set()
    for part in value.split(","):
        first, dash, last = part.strip().partition("-")
        bounds = (first, last if dash else first)
        if not all(bound.isascii() and bound.isdigit() and len(bound) < 6 for bound in bounds):
            raise ConfigError(
                f"VLLM_CPU_OMP_THREADS_BIND={quoted(value)} must be a list of cores like "
                "0-3 or 0,2, or auto (without |: ranks divide the cores in their order)"
            )
        cores |= set(range(int(bounds[0]), int(bounds[1]) + 1))
    return tuple(sorted(cores)) or None


def rank_key() -> str | None:
    """`QUIRE_RANK_KEY`: the secret of an engine on several machines; None: not set."""
    return os.environ.get("QUIRE_RANK_KEY") or None


def rank_certificates() -> tuple[str, str, str] | None:
    """`QUIRE_RANK_CERT`, `QUIRE_RANK_CERT_KEY` and `QUIRE_RANK_CA`: PEM files for TLS between the
    machines of an engine; None: not set, and there is no TLS."""
    certificate, key, authority = (os.environ.get(name, "") for name in RANK_CERTIFICATES)
    if not (certificate or key or authority):
        return None
    if not (certificate and key and authority):
        raise ConfigError(f"{', '.join(RANK_CERTIFICATES)} must all be set, or none of them")
    return certificate, key, authority


def ray_bundle_indices() -> tuple[int, ...] | None:
    """`VLLM_RAY_BUNDLE_INDICES`: the bundles of the placement group, one for each rank."""
    value = os.environ.get("VLLM_RAY_BUNDLE_INDICES", "").strip()
    if not value:
        return None
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < _MAX_DIGITS for part in parts):
        raise ConfigError(
            f"VLLM_RAY_BUNDLE_INDICES={quoted(value)} must be numbers of bundles, like 0,1"
        )
    return tuple(map(int, parts))


def reserved_cores() -> int:
    """`VLLM_CPU_NUM_OF_RESERVED_CPU`: number of cores without compute threads; 0 by default."""
    rule = f"a whole number up to {MAX_THREADS}"
    name = "VLLM_CPU_NUM_OF_RESERVED_CPU"
    return _whole(name, rule, "try 1", least=0, most=MAX_THREADS) or 0


def max_n() -> int:
    """`VLLM_MAX_N_SEQUENCES`: the largest `n` of `SamplingParams`; 16384 by default."""
    return _whole("VLLM_MAX_N_SEQUENCES", "a whole number of at least 1", "try 16384") or 16384


def max_bad_words() -> int:
    """`VLLM_MAX_NUM_BAD_WORDS`: maximum number of token sequences for a request's `bad_words`; 128
    by default."""
    return _whole("VLLM_MAX_NUM_BAD_WORDS", "a whole number of at least 1", "try 128") or 128


def max_download_bytes() -> int:
    """`VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB`: bytes of the files that one request names
    by URLs, at most; 0: no limit. 256 MiB by default."""
    name = "VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB"
    given = _whole(name, "a whole number of MiB, or 0 for no limit", "try 256", least=0)
    return (256 if given is None else given) * MiB


def api_keys() -> list[str]:
    """`QUIRE_API_KEY` and `VLLM_API_KEY`: one API key of a server each."""
    return [key for name in ("QUIRE_API_KEY", "VLLM_API_KEY") if (key := os.environ.get(name))]


def operator_api_keys() -> list[str]:
    """`QUIRE_OPERATOR_API_KEY`: an API key of a server's operator."""
    return [key] if (key := os.environ.get("QUIRE_OPERATOR_API_KEY")) else []


def server_dev_mode() -> bool:
    """`VLLM_SERVER_DEV_MODE`: whether a server has development routes."""
    return is_true("VLLM_SERVER_DEV_MODE")


def allows_loading_adapters() -> bool:
    """`VLLM_ALLOW_RUNTIME_LORA_UPDATING`: whether callers of a server may load adapters."""
    return is_true("VLLM_ALLOW_RUNTIME_LORA_UPDATING")


def kv_store_is_off() -> bool:
    """`QUIRE_KV_STORE`: `off` turns the KV store off, unless an argument requests one."""
    value = os.environ.get("QUIRE_KV_STORE", "").strip().lower()
    if value in ("", "auto", "on", "1", "true"):
        return False
    if value in _FALSE:
        return True
    raise ConfigError(f"QUIRE_KV_STORE={quoted(value)} must be on or off")


def turn_off_kv_store() -> None:
    """Turn the KV store off for this process and its children, unless the user set the variable."""
    os.environ.setdefault("QUIRE_KV_STORE", "off")


def cache_dir() -> Path:
    """Quire's cache directory: `quire` in `XDG_CACHE_HOME`. Raises RuntimeError without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "quire"


def settings_dir() -> Path:
    """Directory of what the user has set for Quire: `quire` in `XDG_CONFIG_HOME`. Raises
    ConfigError without a home."""
    return expanded(os.environ.get("XDG_CONFIG_HOME") or "~/.config") / "quire"


def data_dir() -> Path:
    """Directory of what the user has saved: `quire` in `XDG_DATA_HOME`. Raises ConfigError without
    a home."""
    return expanded(os.environ.get("XDG_DATA_HOME") or "~/.local/share") / "quire"


def hub_is_offline() -> bool:
    """Whether a variable turns access to the hub off."""
    return offline_variable() is not None


def offline_variable() -> str | None:
    """`HF_HUB_OFFLINE` or `TRANSFORMERS_OFFLINE`: the variable that turns access to the hub off, by
    huggingface_hub's rules; None: the hub may be used."""
    name, value = _first_set("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return name if value.upper() in {"1", "ON", "YES", "TRUE"} else None


def hub_cache_dir() -> Path:
    """huggingface_hub's model cache: `HF_HUB_CACHE`, or `hub` in `HF_HOME`."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return expanded(cache)
    user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(user_cache, "huggingface")
    return expanded(home) / "hub"


def ollama_dirs() -> list[Path]:
    """Ollama's folders of models: `OLLAMA_MODELS`, or the user's and that of Linux's service."""
    if folder := os.environ.get("OLLAMA_MODELS"):
        return [expanded(folder)]
    return [expanded("~/.ollama/models"), Path("/usr/share/ollama/.ollama/models")]


def lm_studio_dirs() -> list[Path]:
    """LM Studio's folders of models, the newer one first."""
    return [expanded("~/.lmstudio/models"), expanded("~/.cache/lm-studio/models")]


def llama_cache_dirs() -> list[Path]:
    """llama.cpp's folder of models: `LLAMA_CACHE`, or `llama.cpp` in `XDG_CACHE_HOME`."""
    user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return [expanded(os.environ.get("LLAMA_CACHE") or os.path.join(user_cache, "llama.cpp"))]


def expanded(path: str) -> Path:
    """The path with `~` replaced by the home directory. Raises ConfigError if there is none."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{quoted(path)}: this user has no home directory; set HOME, or give a path without ~ "
            "(HF_HOME sets the directory of hub models)"
        ) from None


def torch_profiler_dir() -> str | None:
    """`VLLM_TORCH_PROFILER_DIR`: directory for traces of steps, unless an argument sets it."""
    return os.environ.get("VLLM_TORCH_PROFILER_DIR") or None


def kv_events_have_numbers() -> bool:
    """`VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES`: whether KV events have 64-bit numbers, not full
    hashes."""
    name = "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"
    return name not in os.environ or is_true(name)


def otlp_traces_endpoint() -> str | None:
    """`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`: endpoint for traces, unless an argument sets it."""
    return os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or None


def otlp_protocol() -> str | None:
    """`OTEL_EXPORTER_OTLP_TRACES_PROTOCOL`, or the variable for all signals; None: from the URL."""
    names = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    return next((os.environ[name] for name in names if os.environ.get(name)), None)
