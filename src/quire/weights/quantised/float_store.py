"""`FloatStore`: a checkpoint of FP8 or bitsandbytes whose matrices are held as their codes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError
from quire.models.quantised import Expanded, Shipped
from quire.weights.quantised.expanded_store import ExpandedStore
from quire.weights.quantised.groups import LEVELS, Floats, Groups
from quire.weights.store import HostTensor, WeightStore


class FloatStore(ExpandedStore):
    """Matrices as codes that stand for floats, in groups; as numbers where groups would not lie in
    rows."""

    def __init__(self, store: WeightStore, shipped: Shipped, expanded: Expanded) -> None:
        """`expanded`: how the same tensors are read as numbers."""
        super().__init__(store, expanded)
        self._shipped = shipped

    def _described(self, name: str, base: str) -> HostTensor:
        return self._tensor(name, self._shape(base), np.empty(0, np.uint8))

    def _made(self, name: str, base: str) -> HostTensor:
        if not self._is_held(self._shape(base)):
            return super()._made(name, base)
        if self._shipped.layout == "fp8":
            groups = self._fp8(base)
        else:
            groups = self._four_bits(base)
        return self._tensor(name, groups.codes.shape, groups.to_bytes())

    def _is_held(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == 2 and self._shipped.fits(shape[1])

    def _tensor(self, name: str, shape: tuple[int, ...], data: NDArray[np.uint8]) -> HostTensor:
        if not self._is_held(shape):
            return HostTensor(name, "F32", shape, data, self.source)
        return HostTensor(name, "GROUPED", shape, data, self.source, format=self._shipped.format)

    def _fp8(self, base: str) -> Groups:
        codes = self._integers(f"{base}.weight", np.uint8)
        scales = self._scales_of(base)
        return Groups(self._shipped.format, codes, self._of_groups(scales, codes.shape))

    def _of_groups(self, scales: Floats, shape: tuple[int, ...]) -> Floats:
        """[N, groups], from scales of all, of rows or of blocks. Raises ValueError."""
        rows, depth = shape
        format, block = self._shipped.format, self._block
        size = (rows, format.num_groups(depth))
        if scales.size == 1:
            return np.full(size, scales.reshape(()), np.float32)
        if block is None:
            return np.ascontiguousarray(np.broadcast_to(scales.reshape(rows, 1), size))
        of_blocks = scales.reshape(-(-rows // block[0]), -(-depth // block[1]))
        of_rows = np.repeat(of_blocks, block[0], axis=0)[:rows]
        columns = np.arange(size[1]) * format.group // block[1]
        return np.ascontiguousarray(of_rows[:, columns])

    def _four_bits(self, base: str) -> Groups:
        found = self._blocks_of_4_bits(base)
        format = self._shipped.format
        if not np.array_equal(found.table, LEVELS[format.table]):
            raise CheckpointError(
                f"quant_map is not the table of {format.table}; quantization='int8' or 'int4' "
                "loads other tables, and rounds the numbers again"
            )
        rows, depth = found.shape
        pairs = found.packed.reshape(-1)
        codes = np.stack((pairs >> 4, pairs & 15), axis=-1).reshape(rows, depth)
        first = np.arange(codes.size // format.group) * format.group
        scales = found.scales.reshape(-1)[self._blocks_at(first, found.block, found.scales.size)]
        return Groups(format, codes, scales.reshape(rows, -1))

    def _blocks_at(self, first: NDArray[np.int64], block: int, count: int) -> NDArray[np.int64]:
        """The block of each group, by its first number. Raises ValueError."""
        if block % self._shipped.format.group:
            raise ValueError(f"blocksize {block} is no multiple of {self._shipped.format.group}")
        blocks: NDArray[np.int64] = first // block
        if count != int(blocks[-1]) + 1:
            raise ValueError(f"{count} scales for {int(blocks[-1]) + 1} blocks of {block}")
        return blocks
