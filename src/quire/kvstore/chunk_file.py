"""The form of a stored chunk: a valid safetensors file with a checksum.

    8 bytes      length of the header, little-endian: 4,088
    header       JSON: `kv`, one tensor of U8 [blocks, block_bytes], and `__metadata__`
    padding      blanks up to 4,096 bytes in all
    K/V          as `CompiledModel.read_blocks` gives it

The same bytes are a file, a value in Redis and an object in a bucket. Nothing of a chunk is
trusted: header, sizes, key and checksum have to be those that are expected.

A key, a shape and the K/V have one header, to the byte. So a chunk is checked by making the header
that it has to have. What it really has is only parsed to say what is wrong, and for tools, which
do not know what to expect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from quire.kvstore.chunks import ChunkKey, ChunkShape
from quire.kvstore.tiers.base import Buffer

HEADER_BYTES = 4096
"""In front of the K/V: a page, so that the K/V is aligned in a file."""
_LENGTH_BYTES = 8
_VERSION = "1"

ChunkErrorKind = Literal["size", "header", "version", "key", "shape", "checksum"]


class ChunkError(Exception):
    """What was read is not the chunk that was asked for. It can only be dropped."""

    def __init__(self, kind: ChunkErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind: ChunkErrorKind = kind


_Hex32 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]*$", min_length=64, max_length=64)]
_Hex16 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]*$", min_length=32, max_length=32)]
_Group = Annotated[str, msgspec.Meta(pattern="^(0|[1-9][0-9]*)$", max_length=6)]
_Size = Annotated[int, msgspec.Meta(ge=0)]


class _Metadata(msgspec.Struct, forbid_unknown_fields=True):
    """Texts alone, as safetensors demands."""

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
    """What a chunk says of itself."""

    key: ChunkKey
    shape: ChunkShape
    checksum: str
    """xxh3_128 of the K/V: 32 hex digits."""


def num_file_bytes(shape: ChunkShape) -> int:
    """The size of an encoded chunk."""
    return HEADER_BYTES + shape.num_bytes


def encode(key: ChunkKey, shape: ChunkShape, data: Buffer) -> list[Buffer]:
    """The parts of an encoded chunk, in order. `data` is one of them and is not copied.

    Raises ValueError if `data` has not the bytes of `shape`.
    """
    view = memoryview(data).cast("B")
    if view.nbytes != shape.num_bytes:
        raise ValueError(f"the K/V of a chunk has {shape.num_bytes} bytes, not {view.nbytes}")
    return [_header(key, shape, _checksum(view)), view]


def decode(buffer: Buffer, key: ChunkKey, shape: ChunkShape) -> memoryview:
    """The K/V of an encoded chunk: a view of `buffer`. Raises ChunkError."""
    view = memoryview(buffer).cast("B")
    if view.nbytes != num_file_bytes(shape):
        raise ChunkError("size", f"{view.nbytes} bytes, not {num_file_bytes(shape)}")
    data = view[HEADER_BYTES:]
    checksum = _checksum(data)
    if bytes(view[:HEADER_BYTES]) != _header(key, shape, checksum):
        raise _difference(view, ChunkHeader(key, shape, checksum))
    return data


def read_header(buffer: Buffer) -> ChunkHeader:
    """What a chunk says of itself, from its first `HEADER_BYTES`; the K/V is not looked at.

    Raises ChunkError.
    """
    view = memoryview(buffer).cast("B")
    if view.nbytes < HEADER_BYTES:
        raise ChunkError("size", f"{view.nbytes} bytes are no chunk")
    length = int.from_bytes(view[:_LENGTH_BYTES], "little")
    if length != HEADER_BYTES - _LENGTH_BYTES:
        raise ChunkError("header", f"a header of {length} bytes")
    try:
        header = _decode_header(bytes(view[_LENGTH_BYTES:HEADER_BYTES]))
    except (ValueError, RecursionError) as error:
        raise ChunkError("header", f"not the header of a chunk: {error}") from None
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
    import xxhash  # only a process with a store needs it

    return xxhash.xxh3_128_hexdigest(data)


def _difference(view: memoryview, expected: ChunkHeader) -> ChunkError:
    """In what a chunk whose header is not the expected one differs."""
    try:
        found = read_header(view)
    except ChunkError as error:
        return error
    if found.key != expected.key:
        return ChunkError("key", "another chunk's")
    if found.shape != expected.shape:
        return ChunkError("shape", f"{found.shape}, not {expected.shape}")
    if found.checksum != expected.checksum:
        return ChunkError("checksum", "the K/V is not what was written")
    return ChunkError("header", "the header is written in another way")
