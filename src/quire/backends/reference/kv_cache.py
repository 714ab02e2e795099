"""The paged KV cache of the reference: one array per layer, K and V of a block side by side.

Knows blocks and slots; what they hold, and for whom, is the scheduler's business.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import KVCacheSpec
from quire.backends.reference.weights import narrow_to_bfloat16, widen_bfloat16
from quire.errors import BackendError
from quire.program import Attention

Floats = NDArray[np.float32]

ITEM_BYTES = {"float32": 4, "bfloat16": 2}


def block_bytes(layers: Sequence[Attention], block_size: int, dtype: str) -> int:
    """Bytes of one block over all layers. Raises BackendError for an unknown dtype."""
    if dtype not in ITEM_BYTES:
        raise BackendError(f"KV cache dtype {dtype!r} is not one of {', '.join(ITEM_BYTES)}")
    numbers = sum(2 * block_size * op.num_kv_heads * op.head_dim for op in layers)
    return numbers * ITEM_BYTES[dtype]


class PagedKVCache:
    """Layer l is [num_blocks, 2, block_size, K * H]: K at 0, V at 1.

    Zeros to begin with, which the system commits only as they are written.
    """

    def __init__(self, layers: Sequence[Attention], spec: KVCacheSpec) -> None:
        self.spec = spec
        self.block_bytes = block_bytes(layers, spec.block_size, spec.dtype)
        self._is_narrow = spec.dtype == "bfloat16"
        storage: type[np.generic] = np.uint16 if self._is_narrow else np.float32
        self._layers = [
            np.zeros((spec.num_blocks, 2, spec.block_size, op.num_kv_heads * op.head_dim), storage)
            for op in layers
        ]

    def write(
        self, layer: int, blocks: NDArray[np.int32], places: NDArray[np.int32], k: Floats, v: Floats
    ) -> None:
        """Puts k and v [T, K * H] into the slots (blocks[t], places[t])."""
        for side, rows in enumerate((k, v)):
            held = narrow_to_bfloat16(rows) if self._is_narrow else rows
            self._layers[layer][blocks, side, places] = held

    def gather(self, layer: int, blocks: NDArray[np.int32], length: int) -> tuple[Floats, Floats]:
        """The first `length` keys and values of the request in these blocks: [length, K * H]."""
        held = self._layers[layer][blocks]
        width = held.shape[-1]
        if self._is_narrow:
            held = widen_bfloat16(held)
        k, v = (held[:, side].reshape(-1, width)[:length] for side in (0, 1))
        return k, v

    def read_blocks(self, block_ids: NDArray[np.int32]) -> NDArray[np.uint8]:
        """[len(block_ids), block_bytes]: each block's layers one after the other."""
        self._check_ids(block_ids)
        parts = [
            np.ascontiguousarray(layer[block_ids]).view(np.uint8).reshape(len(block_ids), -1)
            for layer in self._layers
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
        for layer in self._layers:
            size = layer[0].nbytes
            part = np.ascontiguousarray(data[:, begin : begin + size])
            layer[block_ids] = part.view(layer.dtype).reshape(-1, *layer.shape[1:])
            begin += size

    def _check_ids(self, block_ids: NDArray[np.int32]) -> None:
        limit = self.spec.num_blocks
        if block_ids.size and (block_ids.min() < 0 or block_ids.max() >= limit):
            raise ValueError(f"block ids must be from 0 to {limit - 1}")
