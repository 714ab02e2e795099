"""Matrix products whose rows do not depend on each other, from a BLAS that promises no such thing.

BLAS picks its kernel, and with it the order of additions, by the number of rows; some kernels
also by a row's place among them. So rows are multiplied in tiles of a constant height, padded
with zeros, and a matrix whose places turn out unequal is multiplied row by row instead.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.backends.reference.quantised import round_activations
from quire.program.values import GroupedFormat, Share, WeightFormat

Floats = NDArray[np.float32]

_TILE = 8
_PROBE_SEED = 20240229


class RowIndependentMatrix:
    """A weight [N, K] and a way to multiply by it that gives a row the same bits in any batch."""

    def __init__(
        self,
        weight: Floats,
        weight_format: WeightFormat | GroupedFormat = "dense",
        share: Share | None = None,
    ) -> None:
        """`weight` is rounded to its format already; x is rounded to match it here.

        A rank's share of a weight is multiplied as the whole weight with zeros in other rows,
        because BLAS also picks its kernels by the number of columns.
        """
        self._format = weight_format
        self._own: NDArray[np.intp] | None = None
        if share is not None:
            self._own = np.concatenate([np.arange(a, a + count) for a, count in share.runs])
            whole = np.zeros((share.total, weight.shape[1]), np.float32)
            whole[self._own] = weight
            weight = whole
        self.weight = np.ascontiguousarray(weight, np.float32)
        self._transposed = self.weight.T
        self._places_are_equal = self._probe()

    def _probe(self) -> bool:
        """Multiplies a tile of equal rows: are the results equal bit for bit?"""
        random = np.random.default_rng(_PROBE_SEED)
        row = random.standard_normal((1, self.weight.shape[1]), np.float32)
        tile = np.repeat(row, _TILE, axis=0)
        product = tile @ self._transposed
        return bool((product == product[0]).all())

    def multiply(self, x: Floats) -> Floats:
        """x [T, K] times the transposed weight: float32 [T, N]."""
        x = round_activations(x, self._format)
        out = np.empty((len(x), self.weight.shape[0]), np.float32)
        height = _TILE if self._places_are_equal else 1
        # A separate buffer, so that the address and the surroundings of the tile do not vary.
        tile = np.zeros((height, self.weight.shape[1]), np.float32)
        for begin in range(0, len(x), height):
            rows = x[begin : begin + height]
            tile[: len(rows)] = rows
            out[begin : begin + height] = (tile @ self._transposed)[: len(rows)]
        return out if self._own is None else np.ascontiguousarray(out[:, self._own])
