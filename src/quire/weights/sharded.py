"""A checkpoint of several files (shards), with or without an index of their tensors.

Called by `open`. Independent of file formats: each file is a WeightStore of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from quire.config.checkpoint.model_files import read_json_object
from quire.errors import CheckpointError
from quire.log import get_logger
from quire.units import MiB
from quire.weights.store import HostTensor, WeightStore

MAX_INDEX_BYTES = 64 * MiB
_MAX_NAME_BYTES = 255
"""Longest file name on Linux."""
_logger = get_logger(__name__)

Place = tuple[str, str]
"""The file that a tensor is in, and its name there."""


class ShardedStore(WeightStore):
    """The tensors of several files. Invariant: every tensor name belongs to exactly one file."""

    def __init__(
        self, files: Mapping[str, WeightStore], places: Mapping[str, Place], source: str
    ) -> None:
        """`files`: stores by file name. `places`: the place of every tensor. `source`: the file
        that says the places, for messages."""
        self._files = dict(files)
        self._places = dict(places)
        self._source = source

    @property
    def source(self) -> str:
        return self._source

    def names(self) -> Iterable[str]:
        return self._places.keys()

    def get(self, name: str) -> HostTensor:
        file, inner = self._place(name)
        return replace(file.get(inner), name=name)

    def stored(self, name: str) -> HostTensor:
        file, inner = self._place(name)
        return replace(file.stored(inner), name=name)

    def shape(self, name: str) -> tuple[int, ...]:
        file, inner = self._place(name)
        return file.shape(inner)

    def integers(self, name: str) -> NDArray[np.generic]:
        file, inner = self._place(name)
        return file.integers(inner)

    def release(self, name: str) -> None:
        if name in self._places:
            file, inner = self._place(name)
            file.release(inner)

    def prefetch(self) -> None:
        for file in self._files.values():
            file.prefetch()

    def check(self) -> None:
        for file in self._files.values():
            file.check()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._places = {}

    def _place(self, name: str) -> tuple[WeightStore, str]:
        place = self._places.get(name)
        if place is None:
            raise CheckpointError(f"{', '.join(self._files)} have no tensor {name!r}")
        return self._files[place[0]], place[1]


def _of_linear(folder: str, name: str) -> str:
    return f"{folder}.linear.{name.rpartition('.')[2]}"


def folder_store(
    files: Mapping[str, WeightStore], named: Callable[[str, str], str] = _of_linear
) -> WeightStore:
    """The tensors of a model, and those in folders of their own: of linear layers, or of a draft
    head. `files`: stores by folder; "": the model's own. `named`: the name of a tensor in a
    folder."""
    places = {
        named(folder, name) if folder else name: (folder, name)
        for folder, file in files.items()
        for name in file.names()
    }
    return ShardedStore(files, places, ", ".join(file.source for file in files.values()))


def read_index(path: Path) -> dict[str, str]:
    """The `weight_map` of an index file: from tensor names to names of files in its directory.

    Raises CheckpointError for a malformed index, and for a file name with a path.
    """
    weight_map = read_json_object(path, max_bytes=MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path}: weight_map must be an object that names tensors")
    for name, file_name in weight_map.items():
        if not isinstance(file_name, str) or not _is_plain(file_name):
            raise CheckpointError(
                f"{path}: weight_map[{name!r}] must be a plain file name such as "
                f"'model-00001-of-00002.safetensors', not {str(file_name)[:200]!r}"
            )
    return weight_map


def indexed_store(
    index: Path, owners: dict[str, str], files: dict[str, WeightStore]
) -> WeightStore:
    """Return the store that an index describes. Raises CheckpointError if a file lacks a tensor
    that the index assigns to it."""
    names_by_file = {file_name: set(file.names()) for file_name, file in files.items()}
    for name, file_name in owners.items():
        if name not in names_by_file[file_name]:
            raise CheckpointError(
                f"{index}: assigns tensor {name!r} to {file_name}, which does not hold it"
            )
    extra = sum(len(names) for names in names_by_file.values()) - len(owners)
    if extra:
        _logger.warning("%s: the files hold %d tensors that the index does not name", index, extra)
    places = {name: (file_name, name) for name, file_name in owners.items()}
    return ShardedStore(files, places, str(index))


def joined_store(files: dict[str, WeightStore]) -> WeightStore:
    """Return the store of several files without an index. Raises CheckpointError if two files have
    a tensor of the same name."""
    places: dict[str, Place] = {}
    for file_name, file in files.items():
        for name in file.names():
            if name in places:
                first, _ = places[name]
                raise CheckpointError(f"tensor {name!r} is in both {first} and {file_name}")
            places[name] = (file_name, name)
    return ShardedStore(files, places, ", ".join(file.source for file in files.values()))


def _is_plain(file_name: str) -> bool:
    return (
        "\\" not in file_name
        and "\0" not in file_name
        and PurePosixPath(file_name).name == file_name
        and len(file_name.encode()) <= _MAX_NAME_BYTES
        and file_name not in ("", ".", "..")
    )
