"""Keys and sizes of stored chunks. A chunk is the K/V of a run of full blocks of one layer group,
or of the tail of a prompt, which is one block."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """Identifies a chunk in every process and on every machine.

    Equal keys mean equal bytes: `digest` is a chained hash of all tokens up to the chunk's end. The
    chain starts at `namespace`, which covers everything that influences the K/V.
    """

    namespace: bytes
    """Root of the request's block hashes: covers model, format, adapter and tenant. 32 bytes."""
    digest: bytes
    """The key of the chunk's last block, or of the tail. 32 bytes."""
    group: int
    """Index of the layer group."""

    @property
    def folder(self) -> str:
        """Folder shared by all chunks of one model and one tenant: 32 hex digits."""
        return self.namespace[:16].hex()

    @property
    def name(self) -> str:
        """Name of the chunk within its folder: 64 hex digits, "-" and the group."""
        return f"{self.digest.hex()}-{self.group}"


def parse_chunk_name(name: str) -> tuple[bytes, int]:
    """Return the digest and the group that `ChunkKey.name` encodes."""
    digest, _, group = name.partition("-")
    return bytes.fromhex(digest), int(group)


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """The size of every chunk of a model."""

    num_blocks: int
    block_bytes: int

    @property
    def num_bytes(self) -> int:
        """Size of a chunk's K/V."""
        return self.num_blocks * self.block_bytes
