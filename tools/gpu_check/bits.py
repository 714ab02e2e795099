"""Equal bits: tiles of other sizes, divided work, and recorded launches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from tools.gpu_check.guard import guarded
from tools.gpu_check.launches import held, numbers, wait
from tools.gpu_check.parts import Sizes
from tools.gpu_check.report import Row, equal

from quire.backends.cuda.device import Device
from quire.backends.cuda.kernel import Kernel, Launch
from quire.backends.cuda.lowering.linear import CHUNK, all_rows, product_kernel, reduce_kernel
from quire.backends.cuda.memory import Buffer

TILE_ROWS = (64, 16, 128)
_ROWS, _WIDTH, _DEPTH = 70, 256, 2048
_EMULATED_DEPTH = 1280


def tile_kernel(rows: int, *, is_split: bool = False) -> Kernel:
    """The product of bfloat16 with tiles of so many rows."""
    kernel = product_kernel("bf16", "fp32", is_split=is_split, is_even=True)
    constants = tuple((k, rows if k == "BLOCK_M" else v) for k, v in kernel.constants)
    return replace(kernel, constants=constants)


def extra_kernels() -> list[Kernel]:
    """Kernels of this part that no model launches."""
    return [tile_kernel(rows, is_split=split) for rows in TILE_ROWS for split in (False, True)]


class _Product:
    """One product, in several arrangements."""

    def __init__(self, device: Device, depth: int) -> None:
        self._device, self._depth = device, depth
        self._x, self._w = held(device, 2 * _ROWS * depth), held(device, 2 * _WIDTH * depth)
        device.upload(self._x, numbers(_ROWS * depth, 1))
        device.upload(self._w, numbers(_WIDTH * depth, 2))
        self._bias = held(device, 4 * _WIDTH)
        self._chunks = -(-depth // CHUNK)
        self._parts = held(device, 4 * _ROWS * _WIDTH * self._chunks)
        self.y = held(device, 4 * _ROWS * _WIDTH)

    def launches(self, tile: int, first: int, count: int, *, is_split: bool) -> list[Launch]:
        """The product of some rows."""
        x: Buffer = self._x.from_byte(2 * first * self._depth)
        args = {
            "x": x, "w": self._w, "bias": self._bias, "y": self.y, "parts": self._parts,
            "num_rows": count, "N": _WIDTH, "K": self._depth, "stride_x": self._depth,
            "stride_y": _WIDTH, "has_bias": 0, **all_rows(self._bias),
        }  # fmt: skip
        grid = (-(-count // tile), -(-_WIDTH // 128), self._chunks if is_split else 1)
        found = [Launch(tile_kernel(tile, is_split=is_split), grid, args)]
        if is_split:
            reduced = {
                "parts": self._parts, "bias": self._bias, "y": self.y, "num_rows": count,
                "N": _WIDTH, "num_chunks": self._chunks, "stride_y": _WIDTH, "has_bias": 0,
            }  # fmt: skip
            found.append(Launch(reduce_kernel("fp32"), (count, 1), reduced))
        return found

    def rows(self, tile: int, first: int, count: int, *, is_split: bool) -> NDArray[np.uint32]:
        """The bits of the results."""
        for launch in self.launches(tile, first, count, is_split=is_split):
            self._device.launch(launch)
        return self.bits(count)

    def bits(self, count: int) -> NDArray[np.uint32]:
        """The bits of the last results."""
        found = np.zeros((count, _WIDTH), np.uint32)
        self._device.download(self.y, found)
        return found


def check_bits(device: Device, sizes: Sizes) -> Iterator[Row]:
    """A row alone, in a batch, with each size of tile, divided or not, recorded or not."""
    product = _Product(device, _EMULATED_DEPTH if sizes.is_emulated else _DEPTH)
    whole = product.rows(64, 0, _ROWS, is_split=False)
    ways = [(tile, is_split) for tile in TILE_ROWS for is_split in (False, True)]
    for tile, is_split in ways:
        name = f"rows with tiles of {tile} rows{', divided' * is_split}"
        yield from guarded(sizes, name, _tiles(product, whole, name, tile, is_split=is_split))
    for is_split in (False, True):
        name = f"rows alone{', divided' * is_split}"
        yield from guarded(sizes, name, _alone(product, whole, name, is_split=is_split))
    yield from guarded(sizes, "recorded launches", _recorded(device, product, whole))


def _tiles(
    product: _Product, whole: NDArray[np.uint32], name: str, tile: int, *, is_split: bool
) -> Iterator[Row]:
    different = (product.rows(tile, 0, _ROWS, is_split=is_split) != whole).any(axis=1)
    # Other sizes than 64 are not used by models: their bits may differ.
    if tile == 64:
        yield equal(name, int(different.sum()), _ROWS)
    else:
        yield Row(name, f"{different.sum()} of {_ROWS} differ")


def _alone(
    product: _Product, whole: NDArray[np.uint32], name: str, *, is_split: bool
) -> Iterator[Row]:
    alone = [0, 1, 15, 16, 63, 64, _ROWS - 1]
    different = sum(
        (product.rows(64, row, 1, is_split=is_split) != whole[row]).any() for row in alone
    )
    yield equal(name, int(different), len(alone))


def _recorded(device: Device, product: _Product, whole: NDArray[np.uint32]) -> Iterator[Row]:
    launches = product.launches(64, 0, _ROWS, is_split=True)

    def launch() -> None:
        for one in launches:
            device.launch(one)

    launch()  # loads the kernels
    recording = device.record(launch)
    device.upload(product.y, np.zeros(_ROWS * _WIDTH, np.float32))
    recording.replay()
    wait(device, product.y)
    different = (product.bits(_ROWS) != whole).any(axis=1)
    yield equal("rows of recorded launches", int(different.sum()), _ROWS)
