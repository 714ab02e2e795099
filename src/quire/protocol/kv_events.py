"""What the engine tells of K/V that it keeps and drops: vLLM's KV events, in its wire form.

A batch is a msgpack array, `[timestamp, [event, ...], data-parallel rank]`; an event is a map whose
`type` is the name of its class. Fields with their defaults are left out.
"""

from __future__ import annotations

from typing import Any

import msgspec

BlockHash = int | bytes
"""The low 64 bits of a block's key, or all of its 32 bytes."""

POOL, MEMORY, STORAGE = "GPU", "CPU", "STORAGE"
"""vLLM's names of media: where the model computes, memory beside it, and all others."""


class KVEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    """One of the events."""


class BlockStored(KVEvent):
    """Blocks, each of them behind the one before, can be used again."""

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    """Of the block before the first one; None: they begin a prompt, or it is not told."""
    token_ids: list[int]
    """Of all the blocks; none where only the last block of a chunk is named."""
    block_size: int
    """Tokens of a block; 0 where there are no token ids."""
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[Any] | None] | None = None
    """For each block, what its hash depends on besides tokens: the salt, for the first block."""
    group_idx: int | None = None
    """The group of layers."""
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    """`LOCAL`, or `REMOTE` for a place that several machines share."""
    ownership: str | None = None
    """The tier of the KV store."""
    session_id: str | None = None


class BlockRemoved(KVEvent):
    """Blocks cannot be used again."""

    block_hashes: list[BlockHash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KVEvent):
    """The block pool has no block any more that can be used again."""


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """What happened at one time."""

    ts: float
    """Seconds since the epoch."""
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


def event_hash(digest: bytes, *, as_int: bool) -> BlockHash:
    """A block's key as events have it."""
    return int.from_bytes(digest[-8:], "big") if as_int else digest
