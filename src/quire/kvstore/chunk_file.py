"""Format of a stored chunk: a valid safetensors file with a checksum.

    8 bytes      length of the header, little-endian: 4,088
    header       JSON: `kv`, one tensor of U8 [blocks, block_bytes], and `__metadata__`
    padding      spaces, up to 4,096 bytes in total
    K/V          as `CompiledModel.read_blocks` returns it

Files, Redis values and bucket objects hold the same bytes. A chunk that was read is not
trusted: header, sizes, key and checksum must be the expected ones.

Key, shape and K/V determine every byte of the header. So a chunk is checked by building the header
that it must have. The stored header is parsed only to report what is wrong, and for tools, which
do not know what to expect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from quire.kvstore.chunks import ChunkKey, ChunkShape
from quire.kvstore.tiers.base import Buffer

HEADER_BYTES = 4096
"""Bytes before the K/V: one page, so that the K/V is page-aligned in a file."""
_LENGTH_BYTES = 8
_VERSION = "1"

ChunkErrorKind = Literal["size", "header", "version", "key", "shape", "checksum"]


class ChunkError(Exception):
    """The data is not the requested chunk. The caller can only drop it."""

    def __init__(self, kind: ChunkErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind: ChunkErrorKind = kind


_Hex32 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]*$", min_length=64, max_length=64)]
_Hex16 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]*$", min_length=32, max_length=32)]
_Group = Annotated[str, msgspec.Meta(pattern="^(0|[1-9][0-9]*)$", max_length=6)]
_Size = Annotated[int, msgspec.Meta(ge=0)]


class _Metadata(msgspec.Struct, forbid_unknown_fields=True):
    """Metadata of the safetensors header. All values are strings, as safetensors requires."""

    quire_kv: str
    namespace: _Hex32
    digest: _Hex32
    group: _Group
    xxh3_128: _Hex16


class _Tensor(msgspec.Struct, forbid_unknown_fields=True):
    dtype: Literal["U8"]
    shape: tuple[_Size, _Size]
    data_offsets: tuple[_Size, _Size]


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    metadata: _Metadata = msgspec.field(name="__metadata__")
    kv: _Tensor


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """The contents of a chunk's header."""

    key: ChunkKey
    shape: ChunkShape
    checksum: str
    """xxh3_128 of the K/V: 32 hex digits."""


def num_file_bytes(shape: ChunkShape) -> int:
    """Size of an encoded chunk in bytes."""
    return HEADER_BYTES + shape.num_bytes


def encode(key: ChunkKey, shape: ChunkShape, data: Buffer) -> list[Buffer]:
    """Return the parts of an encoded chunk, in order. `data` is one of them and is not copied.

    Raises ValueError if the size of `data` does not match `shape`.
    """
    view = memoryview(data).cast("B")
    if view.nbytes != shape.num_bytes:
        raise ValueError(f"the K/V of a chunk must have {shape.num_bytes} bytes, not {view.nbytes}")
    return [_header(key, shape, _checksum(view)), view]


def decode(buffer: Buffer, key: ChunkKey, shape: ChunkShape) -> memoryview:
    """Return the K/V of an encoded chunk as a view of `buffer`. Raises ChunkError."""
    view = memoryview(buffer).cast("B")
    if view.nbytes != num_file_bytes(shape):
        raise ChunkError("size", f"{view.nbytes} bytes, not {num_file_bytes(shape)}")
    data = view[HEADER_BYTES:]
    checksum = _checksum(data)
    if bytes(view[:HEADER_BYTES]) != _header(key, shape, checksum):
        raise _difference(view, ChunkHeader(key, shape, checksum))
    return data


def read_header(buffer: Buffer) -> ChunkHeader:
    """Parse the header of a chunk from its first `HEADER_BYTES`; the K/V is not checked.

    Raises ChunkError.
    """
    view = memoryview(buffer).cast("B")
    if view.nbytes < HEADER_BYTES:
        raise ChunkError("size", f"{view.nbytes} bytes are too short for a chunk")
    length = int.from_bytes(view[:_LENGTH_BYTES], "little")
    if length != HEADER_BYTES - _LENGTH_BYTES:
        raise ChunkError(
            "header", f"the header has {length} bytes, not {HEADER_BYTES - _LENGTH_BYTES}"
        )
    try:
        header = _decode_header(bytes(view[_LENGTH_BYTES:HEADER_BYTES]))
    except (ValueError, RecursionError) as error:
        raise ChunkError("header", f"this is not the header of a chunk: {error}") from None
    metadata = header.metadata
    if metadata.quire_kv != _VERSION:
        raise ChunkError("version", f"version {metadata.quire_kv!r}, not {_VERSION!r}")
    shape = ChunkShape(*header.kv.shape)
    if header.kv.data_offsets != (0, shape.num_bytes):
        raise ChunkError("header", f"K/V at {header.kv.data_offsets}, not (0, {shape.num_bytes})")
    namespace, digest = bytes.fromhex(metadata.namespace), bytes.fromhex(metadata.digest)
    return ChunkHeader(ChunkKey(namespace, digest, int(metadata.group)), shape, metadata.xxh3_128)


_decode_header = msgspec.json.Decoder(_Header).decode


def _header(key: ChunkKey, shape: ChunkShape, checksum: str) -> bytes:
    metadata = _Metadata(_VERSION, key.namespace.hex(), key.digest.hex(), str(key.group), checksum)
    tensor = _Tensor("U8", (shape.num_blocks, shape.block_bytes), (0, shape.num_bytes))
    text = msgspec.json.encode(_Header(metadata, tensor))
    length = HEADER_BYTES - _LENGTH_BYTES
    return length.to_bytes(_LENGTH_BYTES, "little") + text.ljust(length)


def _checksum(data: memoryview) -> str:
    import xxhash  # only processes with a KV store need xxhash

    return xxhash.xxh3_128_hexdigest(data)


def _difference(view: memoryview, expected: ChunkHeader) -> ChunkError:
    """Return an error that names the difference between a chunk and the expected header."""
    try:
        found = read_header(view)
    except ChunkError as error:
        return error
    if found.key != expected.key:
        return ChunkError("key", "the key is that of another chunk")
    if found.shape != expected.shape:
        return ChunkError("shape", f"{found.shape}, not {expected.shape}")
    if found.checksum != expected.checksum:
        return ChunkError("checksum", "the K/V does not match its checksum")
    return ChunkError("header", "the header is encoded differently")
