"""The KV store's rows in the output of `quire explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.units import format_bytes

if TYPE_CHECKING:
    from quire.planning.plan import EnginePlan


def store_rows(plan: EnginePlan) -> list[tuple[str, str]]:
    """The size of a chunk, and each tier, the nearest first."""
    from quire.planning.kv.store import describe

    store, cache = plan.config.kv_store, plan.config.cache
    if store is None:
        return [("KV store", f"off: {plan.no_kv_store}")]
    tokens = store.chunk_blocks * cache.block_size
    size = format_bytes(store.chunk_blocks * cache.block_bytes)
    rows = [("KV store", f"chunks of {tokens} tokens, {size} for each group of layers")]
    rows += [("  tier" if index else "  tiers", tier) for index, tier in enumerate(describe(store))]
    if store.disk_path is None:
        rows.append(("  no files", plan.no_kv_store))
    if store.ttl_s is not None:
        rows.append(("  dropped", f"K/V not used for {store.ttl_s:g} s"))
    return rows
