"""Creates the `KVStore` of a configuration."""

from __future__ import annotations

from quire.config.kv_cache import KVStoreConfig
from quire.kvstore.chunks import ChunkShape
from quire.kvstore.store import KVStore
from quire.kvstore.tiers.base import Tier, TierError
from quire.kvstore.tiers.events import TierEvents
from quire.log import get_logger

logger = get_logger(__name__)


def open_store(
    config: KVStoreConfig | None, block_bytes: int, events: TierEvents | None = None
) -> KVStore | None:
    """Return None if no store is configured or none of its tiers can be used. A local tier that
    cannot be opened is left out with a warning, because the store is only a cache. Raises
    ConfigError if a URL does not name a tier."""
    if config is None:
        return None
    tiers = _local_tiers(config)
    try:
        tiers += _far_tiers(config)
    except BaseException:
        for tier in tiers:
            tier.close()
        raise
    if not tiers:
        return None
    shape = ChunkShape(config.chunk_blocks, block_bytes)
    return KVStore(shape, tiers, role=config.role, events=events)


def _far_tiers(config: KVStoreConfig) -> list[Tier]:
    if not config.remotes:
        return []
    from quire.kvstore.tiers.registry import open_tier

    return [open_tier(url, config.ttl_s) for url in config.remotes]


def _local_tiers(config: KVStoreConfig) -> list[Tier]:
    tiers: list[Tier] = []
    if config.memory_bytes:
        from quire.kvstore.tiers.memory import MemoryTier

        tiers.append(MemoryTier(config.memory_bytes, config.ttl_s, config.tenant_bytes))
    if config.disk_path is not None:
        from quire.kvstore.tiers.disk import DiskTier

        try:
            tiers.append(
                DiskTier(config.disk_path, config.disk_bytes, config.ttl_s, config.tenant_bytes)
            )
        except TierError as error:
            logger.warning("KV store: no chunks are kept on disk: %s", error)
    return tiers
