"""`GgufStore`: the tensors of a GGUF model under the names of transformers' checkpoints.

`get` expands blocks to float32, and `stored` returns the blocks; F32, F16 and BF16 tensors are
views of the file. The changes of llama.cpp's conversion are undone: experts that it merged have one
tensor each (views too), and gate and up matrices that it split are joined. Called by
`weights/open`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError, UnsupportedModelError
from quire.gguf.architectures import Architecture, architecture_of
from quire.gguf.architectures.expert_tensors import num_layers
from quire.gguf.block_types import block_values
from quire.gguf.container import GgufHeader
from quire.gguf.keys import Keys
from quire.gguf.projectors.families import projector_of
from quire.gguf.projectors.row import CLIP, vision_keys
from quire.gguf.split import read_headers
from quire.models.quantised.block_formats import BLOCK_FORMATS
from quire.weights.gguf_pieces import Piece, joined_bytes, joined_shape, place_tensors
from quire.weights.mapped_file import MappedFile
from quire.weights.store import ITEM_BYTES, HostTensor, TensorDtype, WeightStore, as_tensor_dtype

_PAIRED_Q, _PAIRED_K = re.compile(r"\.q_proj\."), re.compile(r"\.k_proj\.")
_DECAY = ".A_log"
_GROUPED = "query_key_value."


class GgufStore(WeightStore):
    """The tensors of all files of a model. Invariant: each name stands for one tensor."""

    def __init__(self, files: list[Path]) -> None:
        """Reads only the headers. Raises CheckpointError or UnsupportedModelError."""
        headers = read_headers(files)
        keys, self._row = _read(headers)
        self._num_heads = keys.whole("{arch}.attention.head_count")
        reorders = self._row.has_paired_rows or self._row.has_ungrouped_rows
        kv_heads = "{arch}.attention.head_count_kv"
        self._num_kv_heads = keys.largest(kv_heads, self._num_heads) if reorders else 0
        self._maps = [MappedFile(header.path) for header in headers]
        self._entries = place_tensors(self._row, headers, self._maps)
        self._numbers = _numbers(self._row, keys)

    @property
    def source(self) -> str:
        return ", ".join(str(file.path) for file in self._maps)

    def names(self) -> Iterable[str]:
        return [*self._entries, *self._numbers]

    def get(self, name: str) -> HostTensor:
        """Return numbers. Raises UnsupportedModelError for a type that cannot be expanded."""
        if name in self._numbers:
            data = np.array([self._numbers[name]], np.float32).view(np.uint8)
            return HostTensor(name, "F32", (1,), data, self.source)
        pieces = self._entry(name)
        shape, path = joined_shape(pieces), str(pieces[0].file.path)
        kept = self._kept_type(name, pieces)
        if kept is not None:
            data, is_mapped = joined_bytes(pieces)
            return HostTensor(name, kept, shape, data, path, is_mapped=is_mapped)
        parts = [self._values(piece) for piece in pieces]
        values = (
            parts[0] if len(parts) == 1 else np.concatenate(parts, axis=max(-2, -parts[0].ndim))
        )
        values = self._undone(name, values)
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return HostTensor(name, "F32", shape, data, path)

    def stored(self, name: str) -> HostTensor:
        """Return blocks, with rows in the tensor's order, if a backend supports their type.
        Otherwise return the same as `get`."""
        if name in self._numbers:
            return self.get(name)
        pieces = self._entry(name)
        kind = pieces[0].tensor.type
        format = BLOCK_FORMATS.get(kind.name)
        is_one_type = all(piece.type_name == kind.name for piece in pieces)
        if format is None or len(pieces[0].shape) < 2 or not is_one_type:
            return self.get(name)
        order = self.row_order(name)
        if order is None:
            data, is_mapped = joined_bytes(pieces)
        else:
            data, is_mapped = self.raw(name)[order].reshape(-1), False
        return HostTensor(
            name, "BLOCKS", joined_shape(pieces), data, str(pieces[0].file.path),
            is_mapped=is_mapped, format=format, block_type=kind,
        )  # fmt: skip

    def describe(self, name: str) -> HostTensor:
        """Return the tensor without data, so that nothing is expanded."""
        if name in self._numbers:
            return self.get(name)
        pieces = self._entry(name)
        path, shape = str(pieces[0].file.path), joined_shape(pieces)
        dtype = self._kept_type(name, pieces) or "F32"
        return HostTensor(name, dtype, shape, np.empty(0, np.uint8), path)

    def _kept_type(self, name: str, pieces: Sequence[Piece]) -> TensorDtype | None:
        """The type of a tensor whose numbers are given as they are in the file; None: they become
        float32."""
        type_name = pieces[0].type_name
        is_one_type = all(piece.type_name == type_name for piece in pieces)
        if not is_one_type or type_name not in ITEM_BYTES or self._changes(name):
            return None
        what = f"{pieces[0].file.path}: tensor {pieces[0].tensor.name!r}"
        return as_tensor_dtype(type_name, what)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the file's blocks, without undoing the conversion. For a tensor that the file has
        as two halves, return the first half."""
        return self._entry(name)[0].raw()

    def row_order(self, name: str) -> NDArray[np.intp] | None:
        """Index in the file of each row of the tensor; None: the orders are the same."""
        if self._row.has_paired_rows and (_PAIRED_Q.search(name) or _PAIRED_K.search(name)):
            return self._paired_order(name)
        if self._row.has_ungrouped_rows and _GROUPED in name:
            return self._grouped_order(name)
        return None

    def _paired_order(self, name: str) -> NDArray[np.intp]:
        """Row order of q and k, which the file stores as [heads, H/2, 2]: the two numbers that are
        rotated together are neighbours. Source: llama.cpp, conversion/llama.py, `permute`.
        """
        heads = self._num_heads if _PAIRED_Q.search(name) else self._num_kv_heads
        pairs = self._rows_of(name, 2 * heads).reshape(max(heads, 1), -1, 2)
        order: NDArray[np.intp] = pairs.transpose(0, 2, 1).reshape(-1)
        return order

    def _grouped_order(self, name: str) -> NDArray[np.intp]:
        """Row order of a fused q, k and v: the file stores all of q, then k, then v; the tensor
        groups them by kv head. Source: llama.cpp, conversion/falcon.py.
        """
        heads, kv_heads = self._num_heads, self._num_kv_heads
        rows = self._rows_of(name, heads + 2 * kv_heads)
        if kv_heads < 1 or heads % kv_heads:
            raise CheckpointError(
                f"{self.source}: the number of heads ({heads}) must be a multiple of the number of "
                f"kv heads ({kv_heads})"
            )
        by_head = rows.reshape(heads + 2 * kv_heads, -1)
        q = by_head[:heads].reshape(kv_heads, heads // kv_heads, -1)
        k, v = by_head[heads:].reshape(2, kv_heads, 1, -1)
        order: NDArray[np.intp] = np.concatenate([q, k, v], axis=1).reshape(-1)
        return order

    def _rows_of(self, name: str, parts: int) -> NDArray[np.intp]:
        """Row indices of a tensor. Raises CheckpointError unless its rows split into `parts` equal
        parts."""
        piece = self._entry(name)[0]
        rows = piece.shape[0]
        if parts < 1 or rows % parts:
            raise CheckpointError(
                f"{piece.file.path}: tensor {piece.tensor.name!r} has {rows} rows; with "
                f"{self._num_heads} heads and {self._num_kv_heads} kv heads they must split into "
                f"{parts} equal parts"
            )
        return np.arange(rows)

    def _values(self, piece: Piece) -> NDArray[np.float32]:
        if not piece.tensor.type.is_of_weights:
            raise UnsupportedModelError(
                f"{piece.file.path}: tensor {piece.tensor.name!r} is of type {piece.type_name}, "
                "which cannot be expanded"
            )
        blocks = piece.raw()
        values = block_values(piece.type_name, blocks.reshape(-1, blocks.shape[-1]))
        return values.reshape(piece.shape)

    def _changes(self, name: str) -> bool:
        is_decay = name.endswith(_DECAY)
        return is_decay or self.row_order(name) is not None or self._offset(name) != 0.0

    def _offset(self, name: str) -> float:
        """The number that llama.cpp's conversion added to each weight of a tensor."""
        is_plain = name.endswith(self._row.plain_norms) if self._row.plain_norms else False
        return self._row.norm_offset if name.endswith("norm.weight") and not is_plain else 0.0

    def _undone(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        order, offset = self.row_order(name), self._offset(name)
        if name.endswith(_DECAY):
            return self._logarithms(name, values)
        if order is not None:
            values = values[order]
        return values - np.float32(offset) if offset else values

    def _logarithms(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the logarithms of decays, which the file stores as they are used: -exp(a)."""
        if not (values < 0.0).all():
            raise CheckpointError(
                f"{self.source}: tensor {self._entry(name)[0].tensor.name!r} must have negative "
                "numbers only: they are the decays of a state"
            )
        return np.log(-values)

    def _entry(self, name: str) -> tuple[Piece, ...]:
        entry = self._entries.get(name)
        if entry is None:
            raise CheckpointError(f"{self.source} has no tensor {name!r}")
        return entry

    def release(self, name: str) -> None:
        for piece in self._entries.get(name, ()):
            piece.file.release(piece.offset, piece.num_bytes)

    def prefetch(self) -> None:
        for file in self._maps:
            file.prefetch()

    def check(self) -> None:
        for file in self._maps:
            file.check()

    def close(self) -> None:
        self._entries = {}


def _read(headers: list[GgufHeader]) -> tuple[Keys, Architecture]:
    """The metadata and the row of a model, or of an image encoder."""
    if headers[0].architecture == CLIP:
        keys = vision_keys(headers)
        return keys, projector_of(keys)
    keys = Keys(headers)
    return keys, architecture_of(keys)


def _numbers(row: Architecture, keys: Keys) -> dict[str, float]:
    """The tensors of one number that the file stores as metadata keys, by transformers' names."""
    found: dict[str, float] = {}
    for name, key in row.numbers.items():
        values = keys.numbers(key, float, num_layers(keys))
        if values is None:
            raise keys.error(key, "a list with a number for each layer")
        found |= {f"{row.layers}{layer}.{name}": value for layer, value in enumerate(values)}
    return found
