"""Reads one .safetensors file: an 8-byte header length, a JSON header, then the tensors' bytes.

Called by `open`. Every number in the header is checked against the file before use, so that
a hostile file causes a CheckpointError and no other failure.
Source: https://huggingface.co/docs/safetensors, "Format".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.config.checkpoint.model_files import parse_json_object
from quire.errors import CheckpointError
from quire.units import ceil_div
from quire.weights.mapped_file import MappedFile
from quire.weights.store import HostTensor, WeightStore, as_tensor_dtype

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
_MAX_RANK = 32
_MAX_SIZE = 2**63 - 1

_ITEM_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip

_INTEGERS: dict[str, np.dtype[Any]] = {
    "F8_E4M3": np.dtype("u1"),  # returned as codes: a table gives their values
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
}


@dataclass(frozen=True, slots=True)
class _Entry:
    """One tensor of the header; `offset` counts from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class SafetensorsFile(WeightStore):
    """The tensors of one file, as views of its mapping. Invariant: the entries cover the file
    without gaps or overlaps."""

    def __init__(self, path: Path) -> None:
        """Reads and checks the header alone. Raises CheckpointError."""
        self._file = MappedFile(path)
        self._entries = _read_header(self._file)

    @property
    def source(self) -> str:
        return str(self._file.path)

    def names(self) -> Iterable[str]:
        return self._entries.keys()

    def get(self, name: str) -> HostTensor:
        """Raises CheckpointError for an unknown name, and for a dtype other than F32, BF16, F16."""
        path = str(self._file.path)
        entry = self._entry(name)
        dtype = as_tensor_dtype(entry.dtype, f"{path}: tensor {name!r}")
        data = self._file.slice(entry.offset, entry.num_bytes)
        return HostTensor(name, dtype, entry.shape, data, path, is_mapped=True)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entry(name).shape

    def integers(self, name: str) -> NDArray[np.generic]:
        path = str(self._file.path)
        entry = self._entry(name)
        dtype = _INTEGERS.get(entry.dtype)
        if dtype is None:
            raise CheckpointError(
                f"{path}: tensor {name!r} is of type {entry.dtype}, not of {', '.join(_INTEGERS)}"
            )
        data = self._file.slice(entry.offset, entry.num_bytes)
        found: NDArray[np.generic] = data.view(dtype).reshape(entry.shape)
        return found

    def release(self, name: str) -> None:
        entry = self._entries.get(name)
        if entry is not None:
            self._file.release(entry.offset, entry.num_bytes)

    def prefetch(self) -> None:
        self._file.prefetch()

    def check(self) -> None:
        self._file.check()

    def close(self) -> None:
        self._entries = {}

    def _entry(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise CheckpointError(f"{self._file.path} has no tensor {name!r}")
        return entry


def _read_header(file: MappedFile) -> dict[str, _Entry]:
    path = file.path
    if file.size < 8:
        raise CheckpointError(f"{path}: {file.size} bytes are too few for a safetensors file")
    header_bytes = int.from_bytes(file.bytes(0, 8), "little")
    if header_bytes > min(MAX_HEADER_BYTES, file.size - 8):
        raise CheckpointError(
            f"{path}: the header claims {header_bytes} bytes, in a file of {file.size} bytes; "
            "the file is truncated or not a safetensors file"
        )
    raw = file.bytes(8, header_bytes)
    if not raw.startswith(b"{"):
        raise CheckpointError(f"{path}: the header must be a JSON object: not a safetensors file")
    header = parse_json_object(raw, f"{path}: header")
    header.pop("__metadata__", None)
    begin = 8 + header_bytes
    entries = {name: _read_entry(path, name, fields, begin) for name, fields in header.items()}
    _check_tiling(path, entries, begin, file.size)
    return entries


def _read_entry(path: Path, name: str, fields: Any, begin: int) -> _Entry:
    where = f"{path}: tensor {name!r}"
    if not isinstance(fields, dict) or fields.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where}: the entry must hold dtype, shape and data_offsets")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str):
        raise CheckpointError(f"{where}: the dtype must be a string")
    if not _are_sizes(shape) or len(shape) > _MAX_RANK:
        raise CheckpointError(f"{where}: the shape must be a list of up to {_MAX_RANK} sizes")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where}: data_offsets must be two rising byte offsets")
    num_bytes = offsets[1] - offsets[0]
    bits = _ITEM_BITS.get(dtype)
    if bits is not None and num_bytes != ceil_div(prod(shape) * bits, 8):
        raise CheckpointError(
            f"{where}: {dtype} {shape} takes {ceil_div(prod(shape) * bits, 8)} bytes, "
            f"but its offsets span {num_bytes}"
        )
    return _Entry(dtype, tuple(shape), begin + offsets[0], num_bytes)


def _check_tiling(path: Path, entries: dict[str, _Entry], begin: int, size: int) -> None:
    """Raises CheckpointError unless the tensors cover the rest of the file, each byte once."""
    position, previous = begin, "the header"
    for name, entry in sorted(
        entries.items(), key=lambda item: (item[1].offset, item[1].num_bytes)
    ):
        if entry.offset != position:
            what = "overlaps" if entry.offset < position else "leaves a hole after"
            raise CheckpointError(f"{path}: tensor {name!r} {what} {previous}")
        position, previous = entry.offset + entry.num_bytes, f"tensor {name!r}"
    if position != size:
        raise CheckpointError(
            f"{path}: the header describes {position} bytes, but the file has {size}; "
            + ("it is truncated" if size < position else "the rest belongs to no tensor")
        )


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(
        type(item) is int and 0 <= item <= _MAX_SIZE for item in value
    )
