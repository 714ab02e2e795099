"""KV events: which K/V blocks the engine stores and drops, in vLLM's wire format.

A batch is a msgpack array, `[timestamp, [event, ...], data-parallel rank]`; an event is a map whose
`type` is the name of its class. Fields with their defaults are left out.
"""

from __future__ import annotations

from typing import Any

import msgspec

BlockHash = int | bytes
"""The low 64 bits of a block's key, or all of its 32 bytes."""

POOL, MEMORY, STORAGE = "GPU", "CPU", "STORAGE"
"""vLLM's names of storage media: the block pool, other memory, and all other storage."""


class KVEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    """Base class of the events."""


class BlockStored(KVEvent):
    """Consecutive blocks of a prompt were stored and can be reused."""

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    """Hash of the block before the first one; None at the start of a prompt, or if not reported."""
    token_ids: list[int]
    """Token ids of all blocks; empty if the event names only the last block of a chunk."""
    block_size: int
    """Tokens per block; 0 if there are no token ids."""
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[Any] | None] | None = None
    """For each block, what its hash depends on besides tokens: the name of the adapter; the digest
    of each run of rows in it that are given in place of embeddings, such as those of a picture,
    with the position of its first row in the block (negative if the run begins before the block);
    in the first block, the salt."""
    group_idx: int | None = None
    """Index of the layer group."""
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    """`LOCAL`, or `REMOTE` for storage that several machines share."""
    ownership: str | None = None
    """Name of the tier of the KV store."""
    session_id: str | None = None


class BlockRemoved(KVEvent):
    """Blocks were dropped and cannot be reused."""

    block_hashes: list[BlockHash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KVEvent):
    """The block pool has dropped all reusable blocks."""


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """Events that are sent together."""

    ts: float
    """Seconds since the epoch."""
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


def event_hash(digest: bytes, *, as_int: bool) -> BlockHash:
    """The hash in events of a block's key."""
    return int.from_bytes(digest[-8:], "big") if as_int else digest
