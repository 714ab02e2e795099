"""The paged KV cache: one array of bytes, of which each layer sees its slot.

Knows blocks and slots; what they hold, and for whom, is the scheduler's business.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import KVCacheSpec, check_blocks
from quire.backends.paged.kv_formats import KV_FORMATS, kv_format
from quire.config.kv_groups import KVGroupSpec, KVLayout
from quire.errors import BackendError

Floats = NDArray[np.float32]

KV_CACHE_DTYPES = tuple(KV_FORMATS)


def block_bytes(layout: KVLayout, block_size: int, dtype: str) -> int:
    """Bytes of one block: as many slots as a block has, of the group whose slots are largest.
    Raises BackendError for an unknown dtype."""
    slots = (_slot_bytes(group, block_size, dtype) for group in layout.groups)
    return layout.num_slots * max(slots, default=0)


def _slot_bytes(group: KVGroupSpec, block_size: int, dtype: str) -> int:
    fields = kv_format(dtype).fields(group.num_kv_heads, group.head_dim)
    return sum(2 * block_size * count * np.dtype(kind).itemsize for kind, count in fields)


class PagedKVCache:
    """Layer l is some arrays [num_blocks, 2, block_size, numbers a token]: K at 0, V at 1. Layers
    of different groups may share a slot, that is memory: which blocks are whose keeps them apart.

    Zeros to begin with, which the system commits only as they are written.
    """

    def __init__(self, spec: KVCacheSpec) -> None:
        self.spec = spec
        self.places = spec.layout.places()
        self.block_bytes = block_bytes(spec.layout, spec.block_size, spec.dtype)
        self._format = kv_format(spec.dtype)
        self._blocks = np.zeros((spec.num_blocks, self.block_bytes), np.uint8)
        self._layers = {layer: self._arrays(layer) for layer in self.places}

    def _arrays(self, layer: int) -> list[NDArray[Any]]:
        """Views of the layer's slot in all blocks."""
        place, spec = self.places[layer], self.spec
        group = spec.layout.groups[place.group]
        begin = place.slot * _slot_bytes(group, spec.block_size, spec.dtype)
        found = []
        for kind, count in self._format.fields(group.num_kv_heads, group.head_dim):
            end = begin + 2 * spec.block_size * count * np.dtype(kind).itemsize
            numbers = self._blocks[:, begin:end].view(kind)
            found.append(numbers.reshape(spec.num_blocks, 2, spec.block_size, count))
            begin = end
        return found

    def write(
        self, layer: int, blocks: NDArray[np.int32], places: NDArray[np.int32], k: Floats, v: Floats
    ) -> None:
        """Puts k and v [T, K * H] into the slots (blocks[t], places[t])."""
        for side, rows in enumerate((k, v)):
            stored = self._format.encode(rows.reshape(len(rows), -1, self._head_dim(layer)))
            for array, numbers in zip(self._layers[layer], stored, strict=True):
                array[blocks, side, places] = numbers

    def gather(self, layer: int, blocks: NDArray[np.int32], count: int) -> tuple[Floats, Floats]:
        """The first `count` keys and values that lie in these blocks: [count, K * H]."""
        arrays = self._layers[layer]
        k, v = (
            self._format.decode(
                tuple(array[blocks, side].reshape(-1, array.shape[-1])[:count] for array in arrays),
                self._head_dim(layer),
            )
            for side in (0, 1)
        )
        return k, v

    def read_blocks(
        self, block_ids: NDArray[np.int32], out: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8]:
        """[len(block_ids), block_bytes]: each block's slots one after the other."""
        self._check_ids(block_ids)
        data = self._blocks[block_ids]
        if out is None:
            return data
        check_blocks(out, data.shape)[:] = data
        return out

    def write_blocks(self, block_ids: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        """Puts back what `read_blocks` gave."""
        self._check_ids(block_ids)
        check_blocks(data, (len(block_ids), self.block_bytes))
        self._blocks[block_ids] = data

    def clear_behind(self, block: NDArray[np.uint8], group: int, num_tokens: int) -> None:
        """Keeps the first tokens of a block of a group. Raises BackendError for a group or a number
        of tokens that is none."""
        check_blocks(block, (self.block_bytes,))
        size, groups = self.spec.block_size, self.spec.layout.groups
        if not (0 <= group < len(groups) and 0 <= num_tokens <= size):
            raise BackendError(f"{num_tokens} tokens of layer group {group} are no part of a block")
        begin, one = 0, groups[group]
        for _ in one.layers:
            for kind, count in self._format.fields(one.num_kv_heads, one.head_dim):
                end = begin + 2 * size * count * np.dtype(kind).itemsize
                block[begin:end].reshape(2, size, -1)[:, num_tokens:] = 0
                begin = end
        block[begin:] = 0

    def _head_dim(self, layer: int) -> int:
        return self.spec.layout.groups[self.places[layer].group].head_dim

    def _check_ids(self, block_ids: NDArray[np.int32]) -> None:
        limit = self.spec.num_blocks
        if block_ids.size and (block_ids.min() < 0 or block_ids.max() >= limit):
            raise ValueError(f"block ids must be from 0 to {limit - 1}")
