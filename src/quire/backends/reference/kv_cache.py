"""The paged KV cache of the reference: arrays per layer, K and V of a block side by side.

Knows blocks and slots; what they hold, and for whom, is the scheduler's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import KVCacheSpec
from quire.backends.reference.kv_formats import KV_FORMATS, kv_format
from quire.program import Attention

Floats = NDArray[np.float32]

KV_CACHE_DTYPES = tuple(KV_FORMATS)


def block_bytes(layers: Sequence[Attention], block_size: int, dtype: str) -> int:
    """Bytes of one block over all layers. Raises BackendError for an unknown dtype."""
    held = kv_format(dtype)
    fields = [field for op in layers for field in held.fields(op.num_kv_heads, op.head_dim)]
    return sum(2 * block_size * count * np.dtype(kind).itemsize for kind, count in fields)


class PagedKVCache:
    """Layer l is some arrays [num_blocks, 2, block_size, numbers a token]: K at 0, V at 1.

    Zeros to begin with, which the system commits only as they are written.
    """

    def __init__(self, layers: Sequence[Attention], spec: KVCacheSpec) -> None:
        self.spec = spec
        self.block_bytes = block_bytes(layers, spec.block_size, spec.dtype)
        self._format = kv_format(spec.dtype)
        self._head_dims = [op.head_dim for op in layers]
        self._layers = [
            [
                np.zeros((spec.num_blocks, 2, spec.block_size, count), kind)
                for kind, count in self._format.fields(op.num_kv_heads, op.head_dim)
            ]
            for op in layers
        ]

    def write(
        self, layer: int, blocks: NDArray[np.int32], places: NDArray[np.int32], k: Floats, v: Floats
    ) -> None:
        """Puts k and v [T, K * H] into the slots (blocks[t], places[t])."""
        head_dim = self._head_dims[layer]
        for side, rows in enumerate((k, v)):
            held = self._format.encode(rows.reshape(len(rows), -1, head_dim))
            for array, numbers in zip(self._layers[layer], held, strict=True):
                array[blocks, side, places] = numbers

    def gather(self, layer: int, blocks: NDArray[np.int32], length: int) -> tuple[Floats, Floats]:
        """The first `length` keys and values of the request in these blocks: [length, K * H]."""
        arrays = self._layers[layer]
        k, v = (
            self._format.decode(
                tuple(
                    array[blocks, side].reshape(-1, array.shape[-1])[:length] for array in arrays
                ),
                self._head_dims[layer],
            )
            for side in (0, 1)
        )
        return k, v

    def read_blocks(self, block_ids: NDArray[np.int32]) -> NDArray[np.uint8]:
        """[len(block_ids), block_bytes]: each block's layers one after the other."""
        self._check_ids(block_ids)
        parts = [
            np.ascontiguousarray(array[block_ids]).view(np.uint8).reshape(len(block_ids), -1)
            for array in self._arrays()
        ]
        return np.concatenate(parts, axis=1)

    def write_blocks(self, block_ids: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        """Puts back what `read_blocks` gave."""
        self._check_ids(block_ids)
        if data.shape != (len(block_ids), self.block_bytes) or data.dtype != np.uint8:
            raise ValueError(
                f"blocks are {data.dtype} {data.shape}, "
                f"not uint8 {(len(block_ids), self.block_bytes)}"
            )
        begin = 0
        for array in self._arrays():
            size = array[0].nbytes
            part = np.ascontiguousarray(data[:, begin : begin + size])
            array[block_ids] = part.view(array.dtype).reshape(-1, *array.shape[1:])
            begin += size

    def _arrays(self) -> list[NDArray[Any]]:
        return [array for layer in self._layers for array in layer]

    def _check_ids(self, block_ids: NDArray[np.int32]) -> None:
        limit = self.spec.num_blocks
        if block_ids.size and (block_ids.min() < 0 or block_ids.max() >= limit):
            raise ValueError(f"block ids must be from 0 to {limit - 1}")
