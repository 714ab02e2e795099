"""A user's choices about the KV cache: its number format, by any of vLLM's names, its block size
and its size; and about the places that keep K/V beyond the block pool."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from quire.errors import ConfigError, quoted
from quire.redacted_settings import shown

KVCacheDtype = Literal["float32", "bfloat16", "int8", "fp8", "int4"]

KV_MEANINGS: dict[KVCacheDtype, str] = {
    "float32": "32 bits a number",
    "bfloat16": "16 bits a number",
    "int8": "8 bits a number, a scale for each token and head",
    "fp8": "8 bits a number, floating-point (E4M3), a scale for each token and head",
    "int4": "5 bits a number of K and 4 of V, rotated, a scale for each token and head",
}

DEFAULT_BLOCK_SIZE = 16
MAX_BLOCK_SIZE = 1024


@dataclass(frozen=True, slots=True)
class KVMemoryChoice:
    """The user's say in the size of the KV cache; the first that is set counts."""

    num_blocks: int | None = None
    cache_bytes: int | None = None
    utilization: float = 0.92


_SAME: dict[str, KVCacheDtype] = {
    "float": "float32",
    "int8_per_token_head": "int8",
    "fp8_e4m3": "fp8",
    "fp8_per_token_head": "fp8",
    "int4_per_token_head": "int4",
}
"""Other names of the formats here. vLLM has formats with `per_token_head`, which are like these."""

_REASONS = {
    "fp8": "8-bit floating-point numbers can be used on GPUs only, in the format e4m3",
    "float16": "float16 is not computed here",
    "half": "float16 is not computed here",
    "nvfp4": "there are no 4-bit floating-point numbers here",
    "turboquant": "its tables of codes are not available; int4 is rotated too",
}
"""Why a name is refused, by its prefix."""


def resolve_kv_cache_dtype(name: str, dtype: KVCacheDtype, known: Collection[str]) -> KVCacheDtype:
    """The format that `name` means; `auto` is `dtype`. `known`: the backend's formats.

    Raises ConfigError for any other name, with those that work.
    """
    works = [known_name for known_name in KV_MEANINGS if known_name in known]
    wanted = dtype if name == "auto" else _SAME.get(name, name)
    for known_name in works:
        if known_name == wanted:
            return known_name
    reasons = (why for start, why in _REASONS.items() if name.startswith(start))
    default = "this backend does not compute it" if wanted in KV_MEANINGS else "unknown name"
    reason = next(reasons, default)
    choices = "; ".join(f"{known_name} ({KV_MEANINGS[known_name]})" for known_name in works)
    raise ConfigError(
        f"kv_cache_dtype={quoted(name)} is not available: {reason}; use auto (the model's dtype); "
        f"{choices}"
    )


def resolve_block_size(size: int | None, multiple: int) -> int:
    """Tokens in a KV block. The backend requires a multiple of `multiple`. Raises ConfigError."""
    if size is None:
        return DEFAULT_BLOCK_SIZE
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_BLOCK_SIZE:
        raise ConfigError(
            f"block_size must be from {multiple} to {MAX_BLOCK_SIZE}, got {quoted(size)}; "
            f"try {DEFAULT_BLOCK_SIZE}"
        )
    if size % multiple:
        nearest = max(multiple, round(size / multiple) * multiple)
        raise ConfigError(f"block_size must be a multiple of {multiple}, got {size}; try {nearest}")
    return size


KVRole = Literal["kv_both", "kv_producer", "kv_consumer"]
"""vLLM's names. A producer stores and does not load; a consumer loads and does not store."""


@dataclass(frozen=True, slots=True)
class KVStoreConfig:
    """The tiers of the KV store, from the nearest to the farthest, and their bounds."""

    chunk_blocks: int
    """Blocks of one group in a chunk, the unit of what is stored."""
    memory_bytes: int = 0
    """Most bytes of chunks in the memory of the engine's process; 0: no such tier."""
    disk_path: Path | None = None
    """The directory of chunk files; None: no such tier."""
    disk_bytes: int = 0
    """Most bytes of chunk files, of all models that share the directory."""
    remotes: tuple[str, ...] = ()
    """URLs of tiers that several machines share: `redis://`, `rediss://`, `s3://` ..., or those of
    installed packages."""
    ttl_s: float | None = None
    """Chunks that were not used for this many seconds are dropped; None: only for room."""
    role: KVRole = "kv_both"
    tenant_bytes: int | None = None
    """Most bytes of one model and tenant in each of memory and disk; None: no bound of its own."""

    def __repr__(self) -> str:
        return shown(self)


@dataclass(frozen=True)
class KVEventsConfig:
    """Destination of KV events of the KV cache and the KV store. vLLM's record."""

    enable_kv_cache_events: bool = False
    publisher: str | None = None
    """`zmq`, or `null` for nowhere."""
    endpoint: str = "tcp://127.0.0.1:5557"
    """`tcp://HOST:PORT` or `ipc://PATH`. Subscribers connect to it, unless it names another
    machine, which is connected to."""
    replay_endpoint: str | None = None
    """Address at which subscribers ask for events that they missed."""
    buffer_steps: int = 10_000
    """Most batches that are kept for them."""
    hwm: int = 100_000
    """Most batches that wait for one subscriber; then it loses some."""
    max_queue_size: int = 100_000
    """Most batches that wait to be sent."""
    topic: str = ""

    def of_rank(self, rank: int) -> KVEventsConfig:
        """Destination for one of several engines: vLLM adds the engine's number to the port, and to
        the path of an ipc endpoint."""
        replay = self.replay_endpoint
        return replace(
            self,
            endpoint=_endpoint_of_rank(self.endpoint, rank),
            replay_endpoint=None if replay is None else _endpoint_of_rank(replay, rank),
        )


def _endpoint_of_rank(endpoint: str, rank: int) -> str:
    if rank == 0:
        return endpoint
    if endpoint.startswith("ipc:"):
        return f"{endpoint}_dp{rank}"
    host, _, port = endpoint.rpartition(":")
    return f"{host}:{int(port) + rank}"


@dataclass
class KVTransferConfig:
    """vLLM's record: an argument of an engine, `kv_transfer_config`, which is checked there."""

    kv_connector: str | None = None
    engine_id: str | None = None
    kv_buffer_device: str = "cpu"
    kv_role: str | None = None
    kv_port: int = 14579
    kv_connector_extra_config: dict[str, Any] = field(default_factory=dict)
    kv_connector_module_path: str | None = None
    enable_permute_local_kv: bool = False
    kv_load_failure_policy: str = "fail"
