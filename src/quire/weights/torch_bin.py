"""Reads one PyTorch checkpoint (.bin, .pt) without PyTorch and without the pickle module.

A zip archive: `<name>/data.pkl` is a state dict whose tensors refer to storages,
`<name>/data/<key>` are the storages' bytes, stored uncompressed, so that tensors are
views of the mapped file. Called by `open`; files from before torch 1.6 go to `torch_legacy`.
Source: torch/serialization.py, `_save`.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError
from quire.units import MiB, format_bytes
from quire.weights.mapped_file import MappedFile
from quire.weights.pickle_records import StorageRecord, TensorRecord, read_pickle
from quire.weights.store import ITEM_BYTES, HostTensor, WeightStore, as_tensor_dtype
from quire.weights.torch_legacy import is_legacy_file, read_legacy_file

MAX_PICKLE_BYTES = 64 * MiB
_LOCAL_HEADER_BYTES = 30
_ITEM_BYTES = {**ITEM_BYTES, "F64": 8, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}

StorageFinder = Callable[[StorageRecord], int]
"""Returns the file offset of a storage's first byte. Raises CheckpointError if the storage is not
inside the file."""


class TorchFile(WeightStore):
    """The tensors of one state dict. Contiguous tensors are views of the mapping, others copies."""

    def __init__(self, path: Path, *, takes_tensor: bool = False) -> None:
        """Reads only the pickle. Raises CheckpointError for anything but a state dict.
        `takes_tensor`: a tensor alone is one with a tensor named ""."""
        self._file = MappedFile(path)
        if is_legacy_file(self._file):
            state, find = read_legacy_file(self._file, _ITEM_BYTES)
        else:
            state, find = _read_zip_file(self._file)
        self._find = find
        if takes_tensor and isinstance(state, TensorRecord):
            state = {"": state}
        self._tensors = _tensors_of(state, str(path))

    @property
    def source(self) -> str:
        return str(self._file.path)

    def names(self) -> Iterable[str]:
        return self._tensors.keys()

    def get(self, name: str) -> HostTensor:
        """Raises CheckpointError for an unknown name, a dtype other than F32, BF16, F16, and a
        view that reaches outside its storage."""
        path = str(self._file.path)
        record = self._tensors.get(name)
        if record is None:
            raise CheckpointError(f"{path} has no tensor {name!r}")
        where = f"{path}: tensor {name!r}"
        dtype = as_tensor_dtype(record.storage.dtype, where)
        _check_view(record, where)
        begin = self._find(record.storage)
        item = ITEM_BYTES[dtype]
        storage = self._file.slice(begin, record.storage.num_items * item)
        data = _view(storage, record, item)
        return HostTensor(name, dtype, record.shape, data, path, _is_contiguous(record))

    def release(self, name: str) -> None:
        record = self._tensors.get(name)
        if record is not None:
            item = _ITEM_BYTES[record.storage.dtype]
            begin = self._find(record.storage) + record.offset * item
            self._file.release(begin, prod(record.shape) * item)

    def prefetch(self) -> None:
        self._file.prefetch()

    def check(self) -> None:
        self._file.check()

    def close(self) -> None:
        self._tensors = {}


def _tensors_of(state: object, path: str) -> dict[str, TensorRecord]:
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: holds a {type(state).__name__}, not a state dict")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, TensorRecord):
            raise CheckpointError(
                f"{path}: entry {str(name)[:200]!r} is a {type(value).__name__}, not a tensor: "
                "only a plain state dict can be read"
            )
    return state


def _check_view(record: TensorRecord, where: str) -> None:
    """Raises CheckpointError unless the view is inside its storage and not larger than it."""
    items = prod(record.shape)
    last = record.offset + sum(
        (size - 1) * stride for size, stride in zip(record.shape, record.strides, strict=True)
    )
    if items and (last >= record.storage.num_items or items > record.storage.num_items):
        raise CheckpointError(
            f"{where}: shape {list(record.shape)} with strides {list(record.strides)} at "
            f"{record.offset} reaches outside its storage of {record.storage.num_items} items"
        )


def _view(storage: NDArray[np.uint8], record: TensorRecord, item: int) -> NDArray[np.uint8]:
    items = prod(record.shape)
    if not items:
        return storage[:0]
    begin = record.offset * item
    if _is_contiguous(record):
        return storage[begin : begin + items * item]
    numbers = storage.view(np.uint32 if item == 4 else np.uint16)[record.offset :]
    strides = [stride * item for stride in record.strides]
    strided = np.lib.stride_tricks.as_strided(numbers, record.shape, strides, writeable=False)
    return np.ascontiguousarray(strided).reshape(-1).view(np.uint8)


def _is_contiguous(record: TensorRecord) -> bool:
    expected = 1
    for size, stride in zip(reversed(record.shape), reversed(record.strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _read_zip_file(file: MappedFile) -> tuple[object, StorageFinder]:
    entries = _zip_entries(file)
    pickles = [name for name in entries if name.rpartition("/")[2] == "data.pkl"]
    if len(pickles) != 1:
        raise CheckpointError(
            f"{file.path}: must hold one entry named data.pkl, not {len(pickles)}: this is not a "
            "PyTorch checkpoint"
        )
    prefix = pickles[0][: -len("data.pkl")]
    _check_byte_order(file, entries, prefix)
    begin, length = _entry_bytes(file, entries[pickles[0]])
    if length > MAX_PICKLE_BYTES:
        raise CheckpointError(
            f"{file.path}: data.pkl must have at most {format_bytes(MAX_PICKLE_BYTES)}, not "
            f"{format_bytes(length)}"
        )
    state, _ = read_pickle(file.bytes(begin, length), 0, str(file.path))

    def find(storage: StorageRecord) -> int:
        entry = entries.get(f"{prefix}data/{storage.key}")
        if entry is None:
            raise CheckpointError(f"{file.path} has no storage {storage.key[:200]!r}")
        begin, length = _entry_bytes(file, entry)
        wanted = storage.num_items * _ITEM_BYTES[storage.dtype]
        if length != wanted:
            raise CheckpointError(
                f"{file.path}: storage {storage.key[:200]!r} has {length} bytes, "
                f"but the state dict says {wanted}"
            )
        return begin

    return state, find


def _zip_entries(file: MappedFile) -> dict[str, zipfile.ZipInfo]:
    """The archive's directory, the only part that is read with the zipfile module."""
    try:
        with zipfile.ZipFile(file.path) as archive:
            infos = archive.infolist()
    except (
        zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error, EOFError,
        UnicodeError, OverflowError,
    ) as error:  # fmt: skip
        raise CheckpointError(
            f"{file.path}: not a PyTorch checkpoint, or damaged: {error}"
        ) from None
    entries = {info.filename: info for info in infos}
    if len(entries) != len(infos):
        raise CheckpointError(f"{file.path}: two archive entries have the same name")
    return entries


def _entry_bytes(file: MappedFile, info: zipfile.ZipInfo) -> tuple[int, int]:
    """Offset and length of an entry's bytes. Raises CheckpointError if they are compressed."""
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise CheckpointError(
            f"{file.path}: archive entry {info.filename[:200]!r} is compressed; "
            "PyTorch stores entries without compression"
        )
    header = file.bytes(info.header_offset, _LOCAL_HEADER_BYTES)
    if header[:4] != b"PK\x03\x04":
        raise CheckpointError(
            f"{file.path}: archive entry {info.filename[:200]!r} has no local header"
        )
    name_bytes, extra_bytes = struct.unpack("<HH", header[26:30])
    begin = info.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes
    file.slice(begin, info.file_size)
    return begin, info.file_size


def _check_byte_order(
    file: MappedFile, entries: Mapping[str, zipfile.ZipInfo], prefix: str
) -> None:
    entry = entries.get(f"{prefix}byteorder")
    if entry is None:
        return
    begin, length = _entry_bytes(file, entry)
    order = file.bytes(begin, min(length, 16))
    if order != b"little":
        raise CheckpointError(f"{file.path}: byte order must be b'little', not {order!r}")
