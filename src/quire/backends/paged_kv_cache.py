"""The paged KV cache: one array of bytes, of which each layer sees its slot.

Knows blocks and slots; what they hold, and for whom, is the scheduler's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.kv_blocks import check_blocks
from quire.backends.kv_formats import KV_FORMATS, kv_formats
from quire.backends.records import KVCacheSpec
from quire.config.kv_groups import KVGroup
from quire.config.kv_layout import KVLayout
from quire.config.state_groups import StateGroup
from quire.errors import BackendError

Floats = NDArray[np.float32]

KV_CACHE_DTYPES = tuple(KV_FORMATS)


def block_bytes(layout: KVLayout, block_size: int, dtype: str) -> int:
    """Bytes of one block: as many slots as a block has, of the group whose slots are largest, or
    what a piece of a state takes. Raises BackendError for an unknown dtype."""
    slots = (_slot_bytes(group, block_size, dtype) for group in layout.groups)
    return layout.block_bytes(layout.num_slots * max(slots, default=0))


def _slot_bytes(group: KVGroup, block_size: int, dtype: str) -> int:
    return sum(block_size * count * item for item, count in _fields(group, dtype))


def _fields(group: KVGroup, dtype: str) -> list[tuple[int, int]]:
    """Bytes of a number and numbers of a token, for the arrays of each part of a token."""
    shape = group.shape
    return [
        (np.dtype(kind).itemsize, count)
        for form, width in zip(kv_formats(dtype), shape.parts, strict=True)
        for kind, count in form.fields(shape.num_heads, width)
        if width
    ]


@dataclass(frozen=True, slots=True)
class SlotArray:
    """An array of numbers in a layer's slot of every block: [block_size, count]."""

    begin: int
    """Its first byte in the block."""
    kind: type[np.generic]
    count: int
    """Numbers of a token."""


def slot_arrays(spec: KVCacheSpec, layer: int) -> tuple[list[SlotArray], list[SlotArray]]:
    """The arrays of both parts of what a token stores in a layer."""
    place = spec.layout.places()[layer]
    group = spec.layout.groups[place.group]
    begin = place.slot * _slot_bytes(group, spec.block_size, spec.dtype)
    sides: tuple[list[SlotArray], list[SlotArray]] = ([], [])
    formats = kv_formats(spec.dtype)
    for side, form, width in zip(sides, formats, group.shape.parts, strict=True):
        if not width:
            continue
        for kind, count in form.fields(group.shape.num_heads, width):
            side.append(SlotArray(begin, kind, count))
            begin += spec.block_size * count * np.dtype(kind).itemsize
    return sides


def clear_behind(spec: KVCacheSpec, block: NDArray[np.uint8], group: int, kept: int) -> None:
    """Zeroes all of a block that the group does not keep. Raises BackendError for a group or a
    number of tokens that does not exist."""
    num_bytes = block_bytes(spec.layout, spec.block_size, spec.dtype)
    check_blocks(block, (num_bytes,))
    size, groups = spec.block_size, spec.layout.groups
    own = groups[group] if 0 <= group < len(groups) else None
    if isinstance(own, StateGroup):
        block[own.used_bytes(kept, num_bytes) :] = 0
        return
    if own is None or not 0 <= kept <= size:
        raise BackendError(
            f"{kept} tokens of layer group {group} do not fit in a block: there are "
            f"{len(groups)} groups, and a block has {size} tokens"
        )
    begin = 0
    for _ in own.layers:
        for item, count in _fields(own, spec.dtype):
            end = begin + size * count * item
            block[begin:end].reshape(size, -1)[kept:] = 0
            begin = end
    block[begin:] = 0


class PagedKVCache:
    """K and V of layer l are some arrays [num_blocks, block_size, numbers of a token] each. Layers
    of different groups may share a slot, that is memory: which blocks are whose keeps them apart.

    Zeros to begin with, which the system commits only as they are written.
    """

    def __init__(self, spec: KVCacheSpec) -> None:
        self.spec = spec
        self.places = spec.layout.places()
        self.block_bytes = block_bytes(spec.layout, spec.block_size, spec.dtype)
        self._formats = kv_formats(spec.dtype)
        self._blocks = np.zeros((spec.num_blocks, self.block_bytes), np.uint8)
        self._states = {
            layer: (state.width, places)
            for group in spec.layout.states
            for state, (layer, places) in zip(
                group.states, group.offsets(self.block_bytes).items(), strict=True
            )
        }
        self._layers = {layer: self._arrays(layer) for layer in self.places.keys() - self._states}

    def _arrays(self, layer: int) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
        """Views of both parts of what a token stores in the layer's slot of all blocks."""
        spec = self.spec
        sides: tuple[list[NDArray[Any]], list[NDArray[Any]]] = ([], [])
        for side, arrays in zip(sides, slot_arrays(spec, layer), strict=True):
            for array in arrays:
                end = array.begin + spec.block_size * array.count * np.dtype(array.kind).itemsize
                numbers = self._blocks[:, array.begin : end].view(array.kind)
                side.append(numbers.reshape(spec.num_blocks, spec.block_size, array.count))
        return sides

    def write(
        self, layer: int, blocks: NDArray[np.int32], places: NDArray[np.int32], k: Floats, v: Floats
    ) -> None:
        """Puts k [T, K * H] and v [T, K * value_dim] into the slots (blocks[t], places[t]). What a
        layer does not store, as V of a latent one, is left out."""
        shape = self._group(layer).shape
        if shape.latent_dim:
            k, v = k[:, : shape.latent_dim], k[:, shape.latent_dim :]
        for arrays, form, rows in zip(self._layers[layer], self._formats, (k, v), strict=True):
            if not arrays:
                continue
            stored = form.encode(rows.reshape(len(rows), shape.num_heads, -1))
            for array, numbers in zip(arrays, stored, strict=True):
                array[blocks, places] = numbers

    def gather(self, layer: int, blocks: NDArray[np.int32], count: int) -> tuple[Floats, Floats]:
        """The first `count` keys and values that lie in these blocks: [count, K * H] and
        [count, K * value_dim]. Where only K is stored, both are K."""
        shape = self._group(layer).shape
        first, second = (
            form.decode(
                tuple(array[blocks].reshape(-1, array.shape[-1])[:count] for array in arrays), width
            )
            if arrays
            else None
            for arrays, form, width in zip(
                self._layers[layer], self._formats, shape.parts, strict=True
            )
        )
        if first is None:
            raise BackendError(f"layer {layer} stores no keys")
        if shape.latent_dim:
            k = first if second is None else np.concatenate([first, second], axis=-1)
            return k, k
        return first, first if second is None else second

    def state(self, layer: int, tables: NDArray[np.int32]) -> list[Floats]:
        """The pieces of a recurrent layer's state, to be read and written, given a request's block
        tables [G, B]."""
        width, places = self._states[layer]
        table = tables[self.places[layer].group]
        return [
            self._blocks[table[entry], begin : begin + 4 * width].view(np.float32)
            for entry, begin in places
        ]

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

    def clear_behind(self, block: NDArray[np.uint8], group: int, kept: int) -> None:
        """Zeroes all that the group does not keep. Raises BackendError for a group or a number of
        tokens that does not exist."""
        clear_behind(self.spec, block, group, kept)

    def _group(self, layer: int) -> KVGroup:
        return self.spec.layout.groups[self.places[layer].group]

    def _check_ids(self, block_ids: NDArray[np.int32]) -> None:
        limit = self.spec.num_blocks
        if block_ids.size and (block_ids.min() < 0 or block_ids.max() >= limit):
            raise ValueError(f"block ids must be from 0 to {limit - 1}")
