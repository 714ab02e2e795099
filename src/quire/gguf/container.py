"""Reads the header of one GGUF file: key-value metadata and the table of tensors.

Every count, length and offset is checked against the file's size before it is used, so that a
hostile file gives a CheckpointError and nothing else. What is read is bounded by the file.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from quire.errors import CheckpointError, quoted
from quire.gguf.block_types import BLOCK_TYPES, BlockType
from quire.gguf.byte_reader import ByteReader, open_file
from quire.units import ceil_div

MAGIC = b"GGUF"
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 18
MAX_ARRAY_ITEMS = 1 << 24
"""Items of all arrays of a file together; the largest vocabularies have a quarter million."""
_MAX_KEY_BYTES = 1 << 16
_MAX_TENSOR_NAME_BYTES = 64
_MAX_DIMS = 4
_DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 20
_MAX_ITEMS = 2**63 - 1

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
"""Type codes of numbers, to the letters of the struct module."""
_BOOL, _STRING, _ARRAY = 7, 8, 9

Value = bool | int | float | str | list[Any]


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One entry of the table. `shape` has the slowest dimension first; `offset`: in the file."""

    name: str
    shape: tuple[int, ...]
    type: BlockType
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The header of a file; all its numbers are checked."""

    path: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, GgufTensor]

    @property
    def architecture(self) -> str:
        """`general.architecture`. Raises CheckpointError."""
        name = self.metadata.get("general.architecture")
        if not isinstance(name, str) or not name:
            raise CheckpointError(f"{self.path}: general.architecture is {quoted(name)}, no name")
        return name


def read_header(path: Path) -> GgufHeader:
    """Raises CheckpointError for a file that is missing, damaged, or of another format."""
    descriptor = open_file(path)
    try:
        return _read(ByteReader(descriptor, str(path)), path)
    finally:
        os.close(descriptor)


def _read(reader: ByteReader, path: Path) -> GgufHeader:
    if reader.size < 24 or reader.raw(4) != MAGIC:
        raise CheckpointError(f"{path} is not a GGUF file: it does not begin with {MAGIC.decode()}")
    version = reader.number("I")
    if version not in (2, 3):
        advice = "big-endian files are not read" if version in (2 << 24, 3 << 24) else (
            "convert the model again with a newer llama.cpp"
        )  # fmt: skip
        raise CheckpointError(f"{path}: GGUF version {version}; 2 and 3 are read: {advice}")
    num_tensors = reader.count(MAX_TENSORS, 24, "tensors")
    num_keys = reader.count(MAX_KEYS, 13, "keys")
    metadata = _read_metadata(reader, num_keys)
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not _is_alignment(alignment):
        raise CheckpointError(
            f"{path}: general.alignment is {quoted(alignment)}; it must be a power of two from 8 "
            f"to {_MAX_ALIGNMENT}"
        )
    table = _read_table(reader, num_tensors, alignment)
    begin = ceil_div(reader.position, alignment) * alignment
    tensors = {name: _placed(tensor, begin, reader.size, path) for name, tensor in table.items()}
    _check_apart(tensors, path)
    return GgufHeader(path, metadata, tensors)


def _is_alignment(value: int) -> bool:
    return 8 <= value <= _MAX_ALIGNMENT and value & (value - 1) == 0


def _read_metadata(reader: ByteReader, count: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    num_items = 0
    for _ in range(count):
        key = reader.text(_MAX_KEY_BYTES, "a key")
        if not key or key in metadata:
            raise reader.error(f"key {quoted(key)} is empty" if not key else
                               f"key {quoted(key)} is there twice")  # fmt: skip
        value = _read_value(reader, key, MAX_ARRAY_ITEMS - num_items)
        num_items += len(value) if isinstance(value, list) else 0
        metadata[key] = value
    return metadata


def _read_value(reader: ByteReader, key: str, max_items: int) -> Value:
    code = reader.number("I")
    what = f"the value of {quoted(key)}"
    if code == _ARRAY:
        code = reader.number("I")
        if code == _STRING:
            return reader.texts(reader.count(max_items, 8, f"items of {quoted(key)}"), what)
        letter = "B" if code == _BOOL else _NUMBERS.get(code)
        if letter is None:
            raise reader.error(f"{what} is an array of type {code}, which is not known")
        item_bytes = struct.calcsize(f"<{letter}")
        items = reader.count(max_items, item_bytes, f"items of {quoted(key)}")
        return list(struct.unpack(f"<{items}{letter}", reader.raw(items * item_bytes)))
    if code == _STRING:
        return reader.text(None, what)
    if code == _BOOL:
        flag = reader.number("B")
        if flag > 1:
            raise reader.error(f"{what} is {flag}, neither true nor false")
        return bool(flag)
    if code not in _NUMBERS:
        raise reader.error(f"{what} is of type {code}, which is not known")
    number: int | float = reader.number(_NUMBERS[code])
    return number


def _read_table(reader: ByteReader, count: int, alignment: int) -> dict[str, GgufTensor]:
    """The entries; their offsets count from the begin of the data."""
    table: dict[str, GgufTensor] = {}
    for _ in range(count):
        name = reader.text(_MAX_TENSOR_NAME_BYTES, "a tensor's name")
        where = f"tensor {quoted(name)}"
        if not name or name in table:
            raise reader.error(f"{where} is there twice" if name else "a tensor has no name")
        num_dims = reader.number("I")
        if not 1 <= num_dims <= _MAX_DIMS:
            raise reader.error(f"{where} has {num_dims} dimensions; 1 to {_MAX_DIMS} are allowed")
        sizes = [reader.number("Q") for _ in range(num_dims)]
        code, offset = reader.number("I"), reader.number("Q")
        if not all(sizes) or prod(sizes) > _MAX_ITEMS:
            raise reader.error(f"{where} has the sizes {sizes}: none may be 0, nor all too large")
        type = BLOCK_TYPES.get(code)
        if type is None:
            raise reader.error(f"{where} is of type {code}, which is not known")
        if sizes[0] % type.block_items:
            raise reader.error(
                f"{where} has rows of {sizes[0]} numbers, not a multiple of the "
                f"{type.block_items} in a block of {type.name}"
            )
        if offset % alignment:
            raise reader.error(f"{where} begins at {offset}, not a multiple of {alignment}")
        num_bytes = prod(sizes) // type.block_items * type.block_bytes
        table[name] = GgufTensor(name, tuple(reversed(sizes)), type, offset, num_bytes)
    return table


def _placed(tensor: GgufTensor, begin: int, size: int, path: Path) -> GgufTensor:
    """The entry with its offset in the file, if the file holds all of it."""
    offset = begin + tensor.offset
    if offset + tensor.num_bytes > size:
        raise CheckpointError(
            f"{path}: tensor {quoted(tensor.name)} ends at {offset + tensor.num_bytes}, the file "
            f"at {size}: it is truncated, or the header is wrong"
        )
    return GgufTensor(tensor.name, tensor.shape, tensor.type, offset, tensor.num_bytes)


def _check_apart(tensors: Mapping[str, GgufTensor], path: Path) -> None:
    end, previous = 0, ""
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor.offset):
        if tensor.offset < end:
            raise CheckpointError(
                f"{path}: tensors {quoted(previous)} and {quoted(tensor.name)} overlap"
            )
        end, previous = tensor.offset + tensor.num_bytes, tensor.name
