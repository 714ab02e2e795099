"""What is stored: chunks, each the K/V of a run of full blocks of one group of layers, or of the
tail of a prompt, which is one block."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """Names a chunk, in every process and on every machine.

    Equal keys mean equal bytes: `digest` is the hash of all tokens up to the chunk's end, in a
    chain that begins at `namespace`, and what shapes K/V is in the root of that.
    """

    namespace: bytes
    """The root of the request's block hashes: of model, format, adapter and tenant. 32 bytes."""
    digest: bytes
    """The key of the chunk's last block, or of the tail. 32 bytes."""
    group: int
    """The group of layers."""

    @property
    def folder(self) -> str:
        """All chunks of one model and one tenant share it: 32 hex digits."""
        return self.namespace[:16].hex()

    @property
    def name(self) -> str:
        """Of the chunk within its folder: 64 hex digits and the group."""
        return f"{self.digest.hex()}-{self.group}"


def parse_chunk_name(name: str) -> tuple[bytes, int]:
    """The digest and the group of `ChunkKey.name`."""
    digest, _, group = name.partition("-")
    return bytes.fromhex(digest), int(group)


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """The size of every chunk of a model."""

    num_blocks: int
    block_bytes: int

    @property
    def num_bytes(self) -> int:
        """K/V of a chunk."""
        return self.num_blocks * self.block_bytes
