"""`ChunkPlaces`: a stored chunk, and the blocks of the pool to which it is copied."""

from __future__ import annotations

from dataclasses import dataclass

from quire.kvcache import BlockKey
from quire.kvstore.jobs import StoredChunk


@dataclass(frozen=True, slots=True)
class ChunkPlaces:
    """A chunk, and where its blocks go."""

    chunk: StoredChunk
    end: int
    """The first entry of the block table after the chunk."""
    end_tokens: int
    """Number of tokens up to the end of the chunk."""
    places: list[tuple[int, BlockKey]]
    """For each block that the pool lacks: its index in the chunk, and its key in the pool."""
    num_tokens: int
    """Number of tokens in those blocks."""
