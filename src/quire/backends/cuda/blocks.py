"""`DeviceBlocks`: the KV cache of a model as whole blocks, which the host reads and writes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import KVCacheSpec, check_blocks
from quire.backends.cuda.device import Device
from quire.backends.cuda.memory import Buffer, Memory
from quire.backends.paged_kv_cache import clear_behind

Ids = NDArray[np.int32]


class DeviceBlocks:
    """Blocks follow each other in one memory, as `PagedKVCache` lays them out."""

    def __init__(self, spec: KVCacheSpec, device: Device, memory: Memory, num_bytes: int) -> None:
        """`num_bytes`: of a block."""
        self._spec, self._device, self._memory, self._num_bytes = spec, device, memory, num_bytes

    def hold(self) -> None:
        """Takes the memory, if it was released."""
        self._device.hold(self._memory)

    def release(self) -> None:
        """Gives the memory back. What it held is lost."""
        self._device.release(self._memory)

    def read(self, block_ids: Ids, out: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
        """Copies of blocks."""
        self._check(block_ids)
        shape = (len(block_ids), self._num_bytes)
        found = np.empty(shape, np.uint8) if out is None else check_blocks(out, shape)
        for first, count, block in _runs(block_ids):
            self._device.read(self._blocks(block, count), found[first : first + count])
        return found

    def write(self, block_ids: Ids, data: NDArray[np.uint8]) -> None:
        """Puts copies back."""
        self._check(block_ids)
        check_blocks(data, (len(block_ids), self._num_bytes))
        for first, count, block in _runs(block_ids):
            self._device.write(self._blocks(block, count), data[first : first + count])

    def copy(self, sources: Ids, targets: Ids) -> None:
        """Copies blocks on the device."""
        self._check(sources)
        self._check(targets)
        if len(sources) != len(targets):
            raise ValueError(f"{len(sources)} blocks cannot be copied to {len(targets)}")
        if set(sources.tolist()) & set(targets.tolist()):
            found = np.empty((len(sources), self._num_bytes), np.uint8)
            for source, block in zip(sources.tolist(), found, strict=True):
                self._device.download(self._blocks(source, 1), block)
            for target, block in zip(targets.tolist(), found, strict=True):
                self._device.upload(self._blocks(target, 1), block)
            return
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            self._device.copy(self._blocks(source, 1), self._blocks(target, 1))

    def clear_behind(self, block: NDArray[np.uint8], group: int, kept: int) -> None:
        """Zeroes all of a copy that the group does not keep."""
        clear_behind(self._spec, block, group, kept)

    def _blocks(self, first: int, count: int) -> Buffer:
        return self._memory.part(first * self._num_bytes, count * self._num_bytes)

    def _check(self, block_ids: Ids) -> None:
        limit = self._spec.num_blocks
        if block_ids.size and (block_ids.min() < 0 or block_ids.max() >= limit):
            raise ValueError(f"block ids must be from 0 to {limit - 1}")
        self.hold()


def _runs(block_ids: Ids) -> list[tuple[int, int, int]]:
    """Runs of neighbours: their first place in the list, their number, and their first block."""
    if not len(block_ids):
        return []
    ids = block_ids.astype(np.int64)
    starts = np.flatnonzero(np.diff(ids, prepend=ids[0] - 2) != 1)
    ends = [*starts[1:].tolist(), len(ids)]
    return [
        (first, end - first, int(ids[first]))
        for first, end in zip(starts.tolist(), ends, strict=True)
    ]
