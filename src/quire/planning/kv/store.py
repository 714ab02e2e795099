"""`settle_store`: settles the tiers of the KV store and their limits. Pure: it reads nothing."""

from __future__ import annotations

from dataclasses import dataclass

from quire.config.kv_cache import KVStoreConfig
from quire.config.records import CacheConfig, ModelConfig
from quire.errors import ConfigError
from quire.planning.kv.disk import StoreDisk
from quire.planning.kv.options import AskedStore
from quire.redaction import redact_url
from quire.units import GiB, MiB, format_bytes

MAX_CHUNK_BYTES = 8 * MiB
MAX_CHUNK_TOKENS = 64
"""Limit for a chunk's tokens. Prompts share only the whole chunks of their common prefix, so chunks
must be short."""
MAX_DEFAULT_BYTES = 20 * GiB
DEFAULT_SHARE = 10
"""By default chunk files use at most 1 / `DEFAULT_SHARE` of the free disk space."""


@dataclass(frozen=True, slots=True)
class SettledStore:
    """The settled store, or the reason why there is none."""

    config: KVStoreConfig | None
    reason: str = ""
    """Reason for a missing store or a missing tier."""


def settle_store(
    asked: AskedStore, disk: StoreDisk, cache: CacheConfig, model: ModelConfig, available_bytes: int
) -> SettledStore:
    """Settle the store. `available_bytes`: available memory of the machine. Raises ConfigError for
    a requested tier that is smaller than a chunk or larger than the memory."""
    if asked.is_off:
        return SettledStore(None, "it is switched off")
    if not cache.enable_prefix_caching:
        return SettledStore(None, "prefix caching is off")
    if model.weights == "dummy" and not asked.is_named:
        return SettledStore(None, "the weights are random numbers")
    if model.num_sources and not asked.is_named:
        return SettledStore(None, "audio is rarely heard twice; set kv_store_path to keep its K/V")
    num_blocks = chunk_blocks(cache.block_bytes, cache.block_size)
    chunk_bytes = num_blocks * cache.block_bytes
    _check_room(asked.memory_name, asked.memory_bytes, chunk_bytes)
    if asked.memory_bytes > available_bytes:
        raise ConfigError(
            f"{asked.memory_name} is {format_bytes(asked.memory_bytes)}, but only "
            f"{format_bytes(available_bytes)} are available; give less, or 0 to disable it"
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
    """Return the largest power of two of blocks with at most 8 MiB and 64 tokens; at least 1."""
    most = min(MAX_CHUNK_BYTES // block_bytes, MAX_CHUNK_TOKENS // block_size)
    return 1 << max(0, most.bit_length() - 1)


def _check_room(what: str, num_bytes: int, chunk_bytes: int) -> None:
    if 0 < num_bytes < chunk_bytes:
        raise ConfigError(
            f"{what} is {format_bytes(num_bytes)}, but one chunk needs "
            f"{format_bytes(chunk_bytes)}; give more, or 0 to disable it"
        )


def _disk_bytes(asked: AskedStore, disk: StoreDisk, chunk_bytes: int) -> tuple[int, str]:
    """Return the limit for the files' bytes, or 0 with the reason why files are not used."""
    if asked.disk_bytes == 0:
        return 0, "kv_store_size is 0"
    if disk.problem:
        if asked.path or asked.disk_bytes:
            raise ConfigError(f"kv_store_path: {disk.problem}; give another directory")
        return 0, disk.problem
    if asked.disk_bytes:
        return asked.disk_bytes, ""
    num_bytes = min(MAX_DEFAULT_BYTES, disk.free_bytes // DEFAULT_SHARE)
    if num_bytes < chunk_bytes:
        return (0, f"the disk has {format_bytes(disk.free_bytes)} free; set kv_store_size")
    return num_bytes, ""


def describe(store: KVStoreConfig) -> list[str]:
    """Return a description of each tier for users."""
    tiers = []
    if store.memory_bytes:
        tiers.append(f"{format_bytes(store.memory_bytes)} of memory")
    if store.disk_path:
        # The path may contain bytes that are not UTF-8, but the log is text.
        shown = str(store.disk_path).encode("utf-8", "backslashreplace").decode()
        tiers.append(f"up to {format_bytes(store.disk_bytes)} in {shown}")
    return [*tiers, *map(redact_url, store.remotes)]
