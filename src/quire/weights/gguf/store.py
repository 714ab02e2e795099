"""`GgufStore`: the tensors of a GGUF model under the names of transformers' checkpoints.

`get` expands blocks to float32, `stored` gives them as they are; F32, F16 and BF16 are views of the
file. What llama.cpp's conversion did to a tensor is undone. Called by `weights/open`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError, UnsupportedModelError
from quire.gguf.architectures import architecture_of
from quire.gguf.container import GgufTensor
from quire.gguf.keys import Keys
from quire.gguf.split import read_headers
from quire.models.shipped.block_formats import BLOCK_FORMATS
from quire.weights.gguf.values import READABLE, block_values
from quire.weights.mapped_file import MappedFile
from quire.weights.store import ITEM_BYTES, HostTensor, TensorDtype, WeightStore, as_tensor_dtype

_PAIRED = ("self_attn.q_proj.", "self_attn.k_proj.")


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as the file has it: [rows, blocks of a row, bytes of a block], a view of the map."""

    type_name: str
    shape: tuple[int, ...]
    blocks: NDArray[np.uint8]


class GgufStore(WeightStore):
    """The tensors of all files of a model. Invariant: each name lies in one file."""

    def __init__(self, files: list[Path]) -> None:
        """Reads headers alone. Raises CheckpointError or UnsupportedModelError."""
        headers = read_headers(files)
        keys = Keys(headers)
        self._row = architecture_of(keys)
        self._num_heads = keys.whole("{arch}.attention.head_count")
        self._num_kv_heads = keys.whole("{arch}.attention.head_count_kv", self._num_heads)
        self._maps = [MappedFile(header.path) for header in headers]
        self._entries: dict[str, tuple[GgufTensor, MappedFile]] = {}
        for header, file in zip(headers, self._maps, strict=True):
            for name, tensor in header.tensors.items():
                stored = self._row.tensor_name(name)
                if stored is not None:
                    self._entries[stored] = (tensor, file)

    @property
    def source(self) -> str:
        return ", ".join(str(file.path) for file in self._maps)

    def names(self) -> Iterable[str]:
        return self._entries.keys()

    def get(self, name: str) -> HostTensor:
        """Raises UnsupportedModelError for a type whose values are not known."""
        tensor, file = self._entry(name)
        type_name, path = tensor.type.name, str(file.path)
        is_changed = self._changes(name)
        if type_name in ITEM_BYTES and not is_changed:
            data = file.slice(tensor.offset, tensor.num_bytes)
            dtype: TensorDtype = as_tensor_dtype(type_name, f"{path}: tensor {tensor.name!r}")
            return HostTensor(name, dtype, tensor.shape, data, path, is_mapped=True)
        if type_name not in READABLE:
            raise UnsupportedModelError(
                f"{path}: tensor {tensor.name!r} is of type {type_name}, which has no weights"
            )
        blocks = self.raw(name).blocks
        values = block_values(type_name, blocks.reshape(-1, blocks.shape[-1]))
        values = self._undone(name, values.reshape(tensor.shape))
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return HostTensor(name, "F32", tensor.shape, data, path)

    def stored(self, name: str) -> HostTensor:
        """As its blocks, where a backend can hold their type; rows in the tensor's order."""
        tensor, file = self._entry(name)
        format = BLOCK_FORMATS.get(tensor.type.name)
        if format is None or len(tensor.shape) != 2:
            return self.get(name)
        raw, order = self.raw(name).blocks, self.row_order(name)
        data = (raw if order is None else raw[order]).reshape(-1)
        return HostTensor(
            name, "BLOCKS", tensor.shape, data, str(file.path), is_mapped=order is None,
            format=format, block_type=tensor.type,
        )  # fmt: skip

    def raw(self, name: str) -> RawTensor:
        """The blocks as they lie in the file, without undoing what the conversion did."""
        tensor, file = self._entry(name)
        data = file.slice(tensor.offset, tensor.num_bytes)
        row_blocks = tensor.shape[-1] // tensor.type.block_items
        blocks = data.reshape(-1, row_blocks, tensor.type.block_bytes)
        return RawTensor(tensor.type.name, tensor.shape, blocks)

    def row_order(self, name: str) -> NDArray[np.intp] | None:
        """Which of the file's rows each row of the tensor is; None where they are in order.

        Rows of q and k lie as [heads, H/2, 2]: the two numbers that are rotated together are
        neighbours. Source: llama.cpp, conversion/llama.py, `permute`.
        """
        if not self._row.has_paired_rows or not any(part in name for part in _PAIRED):
            return None
        tensor, file = self._entry(name)
        heads = self._num_heads if _PAIRED[0] in name else self._num_kv_heads
        rows = tensor.shape[0]
        if heads < 1 or rows % (2 * heads):
            raise CheckpointError(
                f"{file.path}: tensor {tensor.name!r} has {rows} rows, which do not make {heads} "
                "heads of even size"
            )
        pairs = np.arange(rows).reshape(heads, rows // heads // 2, 2)
        order: NDArray[np.intp] = pairs.transpose(0, 2, 1).reshape(-1)
        return order

    def _changes(self, name: str) -> bool:
        return self.row_order(name) is not None or self._offset(name) != 0.0

    def _offset(self, name: str) -> float:
        """What is subtracted from a tensor's numbers."""
        return self._row.norm_offset if name.endswith("norm.weight") else 0.0

    def _undone(self, name: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
        order, offset = self.row_order(name), self._offset(name)
        if order is not None:
            values = values[order]
        return values - np.float32(offset) if offset else values

    def _entry(self, name: str) -> tuple[GgufTensor, MappedFile]:
        entry = self._entries.get(name)
        if entry is None:
            raise CheckpointError(f"{self.source}: there is no tensor {name!r}")
        return entry

    def release(self, name: str) -> None:
        entry = self._entries.get(name)
        if entry is not None:
            tensor, file = entry
            file.release(tensor.offset, tensor.num_bytes)

    def prefetch(self) -> None:
        for file in self._maps:
            file.prefetch()

    def check(self) -> None:
        for file in self._maps:
            file.check()

    def close(self) -> None:
        self._entries = {}
