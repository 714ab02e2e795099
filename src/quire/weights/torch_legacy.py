"""Reads PyTorch checkpoints from before 1.6: five pickles in a row, then the storages' bytes.

The pickles are the magic number, the protocol, system information, the state dict and the storages'
keys. Each storage is a 64-bit count of items and its bytes, in the order of the keys. Called by
`torch_bin`.
Source: torch/serialization.py, `_legacy_save`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quire.errors import CheckpointError
from quire.units import MiB
from quire.weights.mapped_file import MappedFile
from quire.weights.pickle_records import StorageRecord, TensorRecord, read_pickle

_MAGIC = 0x1950A86A20F9469CFC6C
_PROTOCOL = 1001
_MAX_PICKLE_BYTES = 64 * MiB


def is_legacy_file(file: MappedFile) -> bool:
    """Whether the file begins with a pickle; newer files are zip archives and begin with `PK`."""
    return file.bytes(0, 1) == b"\x80"


def read_legacy_file(
    file: MappedFile, item_bytes: Mapping[str, int]
) -> tuple[object, Callable[[StorageRecord], int]]:
    """Return the state dict, and a function that returns a storage's offset. Raises
    CheckpointError."""
    source = str(file.path)
    data = file.bytes(0, min(file.size, _MAX_PICKLE_BYTES))
    magic, position = read_pickle(data, 0, source)
    if magic != _MAGIC:
        raise CheckpointError(f"{source}: is a pickle, but not a PyTorch checkpoint")
    protocol, position = read_pickle(data, position, source)
    if protocol != _PROTOCOL:
        raise CheckpointError(f"{source}: the format version must be {_PROTOCOL}")
    facts, position = read_pickle(data, position, source)
    if not isinstance(facts, dict) or facts.get("little_endian") is not True:
        raise CheckpointError(f"{source}: must have been written on a little-endian machine")
    state, position = read_pickle(data, position, source)
    keys, position = read_pickle(data, position, source)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise CheckpointError(f"{source}: the storages must be a list of keys")
    storages = _storages_of(state, source)
    offsets = _walk_storages(file, position, keys, storages, item_bytes)

    def find(storage: StorageRecord) -> int:
        if storage.key not in offsets:
            raise CheckpointError(f"{source} has no storage {storage.key[:200]!r}")
        return offsets[storage.key]

    return state, find


def _storages_of(state: object, source: str) -> dict[str, StorageRecord]:
    found: dict[str, StorageRecord] = {}
    if isinstance(state, TensorRecord):  # saved alone
        state = {"": state}
    for value in state.values() if isinstance(state, dict) else ():
        if isinstance(value, TensorRecord):
            storage = found.setdefault(value.storage.key, value.storage)
            if storage != value.storage:
                raise CheckpointError(f"{source}: storage {storage.key[:200]!r} has two types")
    return found


def _walk_storages(
    file: MappedFile,
    position: int,
    keys: list[str],
    storages: Mapping[str, StorageRecord],
    item_bytes: Mapping[str, int],
) -> dict[str, int]:
    offsets: dict[str, int] = {}
    for key in keys:
        storage = storages.get(key)
        if storage is None or key in offsets:
            raise CheckpointError(f"{file.path}: storage {key[:200]!r} belongs to no tensor")
        num_items = int.from_bytes(file.bytes(position, 8), "little")
        if num_items != storage.num_items:
            raise CheckpointError(
                f"{file.path}: storage {key[:200]!r} has {num_items} items, "
                f"but the state dict says {storage.num_items}"
            )
        offsets[key] = position + 8
        num_bytes = num_items * item_bytes[storage.dtype]
        file.slice(position + 8, num_bytes)
        position += 8 + num_bytes
    return offsets
