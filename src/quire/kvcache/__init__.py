"""Block accounting of the paged KV cache: block tables, free blocks, prefix hashes. No tensors."""

from quire.kvcache.block_events import BlockEvents
from quire.kvcache.block_pool import BlockKey, BlockPool
from quire.kvcache.manager import KVCacheManager
from quire.kvcache.reservations import Reservation
from quire.kvcache.sequence import (
    CachedPrefix,
    SequenceBlocks,
    hash_block,
    model_root,
    request_root,
)
from quire.kvcache.tail import Tail

__all__ = [
    "BlockEvents", "BlockKey", "BlockPool", "CachedPrefix", "KVCacheManager",
    "Reservation", "SequenceBlocks", "Tail", "hash_block", "model_root", "request_root",
]  # fmt: skip
