"""Bookkeeping of the paged KV cache: which block holds what, and who holds it. No tensor here."""

from quire.kvcache.block_pool import BlockPool
from quire.kvcache.hashing import hash_block, model_root, request_root
from quire.kvcache.manager import KVCacheManager
from quire.kvcache.sequence import CachedPrefix, SequenceBlocks

__all__ = [
    "BlockPool", "CachedPrefix", "KVCacheManager", "SequenceBlocks", "hash_block", "model_root",
    "request_root",
]  # fmt: skip
