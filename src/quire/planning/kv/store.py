"""`settle_store`: the tiers of the KV store and their bounds. Pure: nothing is read here."""

from __future__ import annotations

from dataclasses import dataclass

from quire.config.kv_cache import KVStoreConfig
from quire.config.records import CacheConfig, WeightSource
from quire.errors import ConfigError
from quire.planning.kv.asked import AskedStore
from quire.planning.kv.disk import StoreDisk
from quire.redaction import redact_url
from quire.units import GiB, MiB, format_bytes

MAX_CHUNK_BYTES = 8 * MiB
MAX_CHUNK_TOKENS = 64
"""Two prompts share whole chunks alone of what they have in common."""
MAX_DEFAULT_BYTES = 20 * GiB
DEFAULT_SHARE = 10
"""By default chunk files take at most one part in so many of the free disk."""


@dataclass(frozen=True, slots=True)
class SettledStore:
    """The store, or why there is none."""

    config: KVStoreConfig | None
    reason: str = ""
    """Why there is no store, or not all of it."""


def settle_store(
    asked: AskedStore,
    disk: StoreDisk,
    cache: CacheConfig,
    weights: WeightSource,
    available_bytes: int,
) -> SettledStore:
    """`available_bytes`: of the machine's memory. Raises ConfigError for a tier that was asked for
    and has no room for a chunk, and for one that the machine has no room for."""
    if asked.is_off:
        return SettledStore(None, "it is switched off")
    if not cache.enable_prefix_caching:
        return SettledStore(None, "prefix caching is off")
    if weights == "dummy" and not asked.is_named:
        return SettledStore(None, "the weights are random numbers")
    num_blocks = chunk_blocks(cache.block_bytes, cache.block_size)
    chunk_bytes = num_blocks * cache.block_bytes
    _check_room(asked.memory_name, asked.memory_bytes, chunk_bytes)
    if asked.memory_bytes > available_bytes:
        raise ConfigError(
            f"{asked.memory_name} is {format_bytes(asked.memory_bytes)}, and "
            f"{format_bytes(available_bytes)} are available; give less, or 0 for none"
        )
    _check_room("kv_store_size", asked.disk_bytes or 0, chunk_bytes)
    _check_room("kv_store_tenant_size", asked.tenant_bytes or 0, chunk_bytes)
    disk_bytes, reason = _disk_bytes(asked, disk, chunk_bytes)
    if not (disk_bytes or asked.memory_bytes or asked.remotes):
        return SettledStore(None, reason)
    return SettledStore(
        KVStoreConfig(
            chunk_blocks=num_blocks,
            memory_bytes=asked.memory_bytes,
            disk_path=disk.path if disk_bytes else None,
            disk_bytes=disk_bytes,
            remotes=asked.remotes,
            tenant_bytes=asked.tenant_bytes,
            ttl_s=asked.ttl_s,
            role=asked.role,
        ),
        reason,
    )


def chunk_blocks(block_bytes: int, block_size: int) -> int:
    """The largest power of two of blocks that has at most 8 MiB and 64 tokens; at least 1."""
    most = min(MAX_CHUNK_BYTES // block_bytes, MAX_CHUNK_TOKENS // block_size)
    return 1 << max(0, most.bit_length() - 1)


def _check_room(what: str, num_bytes: int, chunk_bytes: int) -> None:
    if 0 < num_bytes < chunk_bytes:
        raise ConfigError(
            f"{what} is {format_bytes(num_bytes)}, and one chunk takes "
            f"{format_bytes(chunk_bytes)}; give more, or 0 for none"
        )


def _disk_bytes(asked: AskedStore, disk: StoreDisk, chunk_bytes: int) -> tuple[int, str]:
    """Most bytes of files; 0 with the reason for no files."""
    if asked.disk_bytes == 0:
        return 0, "kv_store_size is 0"
    if disk.problem:
        if asked.path or asked.disk_bytes:
            raise ConfigError(f"kv_store_path: {disk.problem}; name another directory")
        return 0, disk.problem
    if asked.disk_bytes:
        return asked.disk_bytes, ""
    num_bytes = min(MAX_DEFAULT_BYTES, disk.free_bytes // DEFAULT_SHARE)
    if num_bytes < chunk_bytes:
        return 0, f"the disk has {format_bytes(disk.free_bytes)} free; kv_store_size takes more"
    return num_bytes, ""


def describe(store: KVStoreConfig) -> list[str]:
    """A tier each, for people."""
    tiers = []
    if store.memory_bytes:
        tiers.append(f"{format_bytes(store.memory_bytes)} of memory")
    if store.disk_path:
        # A path may hold bytes that are no UTF-8; a log is text.
        shown = str(store.disk_path).encode("utf-8", "backslashreplace").decode()
        tiers.append(f"up to {format_bytes(store.disk_bytes)} in {shown}")
    return [*tiers, *map(redact_url, store.remotes)]
