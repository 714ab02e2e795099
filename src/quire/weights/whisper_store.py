"""`WhisperStore`: the tensors of a Whisper model of CTranslate2 or whisper.cpp, under the names of
transformers' checkpoints.

Plain numbers are views of the file. Blocks of whisper.cpp are returned by `stored`. The codes of
CTranslate2's int8 matrices have the names of compressed-tensors, `X.weight` and `X.weight_scale`;
other codes are expanded. Called by `weights/open`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.config.whisper.tensors import Scales, WhisperTensor, read_whisper
from quire.errors import CheckpointError
from quire.gguf.block_types import block_values
from quire.models.quantised.block_formats import BLOCK_FORMATS
from quire.weights.mapped_file import MappedFile
from quire.weights.store import ITEM_BYTES, HostTensor, WeightStore, as_tensor_dtype

_SCALE = "_scale"
_CODES: dict[str, np.dtype[Any]] = {"I8": np.dtype("i1"), "I16": np.dtype("<i2")}


class WhisperStore(WeightStore):
    """The tensors of one file."""

    def __init__(self, path: Path) -> None:
        """Reads only the header. Raises CheckpointError or UnsupportedModelError."""
        self._file = MappedFile(path)
        self._tensors = dict(read_whisper(path).tensors)
        self._scales = {
            f"{name}{_SCALE}": tensor for name, tensor in self._tensors.items() if tensor.is_held
        }

    @property
    def source(self) -> str:
        return str(self._file.path)

    def names(self) -> Iterable[str]:
        return [*self._tensors, *self._scales]

    def get(self, name: str) -> HostTensor:
        if name in self._scales:
            return self._weight_scale(name)
        tensor = self._tensor(name)
        if tensor.type.name in ITEM_BYTES:
            dtype = as_tensor_dtype(tensor.type.name, name)
            data = self._raw(tensor)
            return HostTensor(name, dtype, tensor.shape, data, self.source, is_mapped=True)
        return self._floats(name, self._values(tensor), tensor.shape)

    def stored(self, name: str) -> HostTensor:
        """Return blocks if a backend supports their type; otherwise the same as `get`."""
        tensor = self._tensors.get(name)
        format = None if tensor is None else BLOCK_FORMATS.get(tensor.type.name)
        if tensor is None or format is None or len(tensor.shape) != 2:
            return self.get(name)
        return HostTensor(
            name, "BLOCKS", tensor.shape, self._raw(tensor), self.source, is_mapped=True,
            format=format, block_type=tensor.type,
        )  # fmt: skip

    def describe(self, name: str) -> HostTensor:
        """Return the tensor without data, so that nothing is expanded."""
        if name in self._scales:
            return self.get(name)
        tensor = self._tensor(name)
        kind = tensor.type.name
        dtype = as_tensor_dtype(kind, name) if kind in ITEM_BYTES else "F32"
        return HostTensor(name, dtype, tensor.shape, np.empty(0, np.uint8), self.source)

    def integers(self, name: str) -> NDArray[np.generic]:
        tensor = self._tensor(name)
        if not tensor.is_held:
            return super().integers(name)
        found: NDArray[np.generic] = self._raw(tensor).view(np.int8).reshape(tensor.shape)
        return found

    def release(self, name: str) -> None:
        tensor = self._tensors.get(name)
        if tensor is not None:
            self._file.release(tensor.offset, tensor.num_bytes)

    def prefetch(self) -> None:
        self._file.prefetch()

    def check(self) -> None:
        self._file.check()

    def close(self) -> None:
        self._tensors = {}

    def _tensor(self, name: str) -> WhisperTensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"{self.source} has no tensor {name!r}")
        return tensor

    def _raw(self, tensor: WhisperTensor) -> NDArray[np.uint8]:
        return self._file.slice(tensor.offset, tensor.num_bytes)

    def _values(self, tensor: WhisperTensor) -> NDArray[np.float32]:
        if tensor.scales is None:
            blocks = self._raw(tensor).reshape(-1, tensor.type.block_bytes)
            return block_values(tensor.type.name, blocks)
        codes = self._raw(tensor).view(_CODES[tensor.type.name]).reshape(tensor.shape[0], -1)
        with np.errstate(over="ignore"):  # packing reports numbers that are not finite
            values: NDArray[np.float32] = np.divide(
                codes, self._divisors(tensor.scales), dtype=np.float32
            )
        return values

    def _weight_scale(self, name: str) -> HostTensor:
        tensor = self._scales[name]
        factors = np.float32(1.0) / self._divisors(tensor.scales or Scales(0, 0))
        rows = np.broadcast_to(factors, (tensor.shape[0], 1))
        return self._floats(name, rows, rows.shape)

    def _divisors(self, scales: Scales) -> NDArray[np.float32]:
        """[rows, 1]. Raises CheckpointError for a number by which nothing can be divided."""
        raw = self._file.slice(scales.offset, 4 * scales.count)
        found = raw.view(np.float32).reshape(-1, 1)
        smallest, largest = np.finfo(np.float32).tiny, np.finfo(np.float32).max
        if not ((found >= smallest) & (found <= largest)).all():
            raise CheckpointError(f"{self.source}: the scales of codes must be positive numbers")
        return found

    def _floats(self, name: str, values: NDArray[Any], shape: tuple[int, ...]) -> HostTensor:
        data = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8)
        return HostTensor(name, "F32", shape, data, self.source)
