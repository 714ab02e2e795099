"""Products of one row, for the twins of products with many matrices."""

from __future__ import annotations

import numpy as np

from quire.backends.cuda.twins.numbers import Floats


def row_product(row: Floats, weight: Floats, chunk: int) -> Floats:
    """weight [N, K] @ row [K], chunk by chunk."""
    total = np.zeros(len(weight), np.float32)
    for begin in range(0, len(row), chunk):
        part = np.ascontiguousarray(weight[:, begin : begin + chunk])
        total = total + part @ row[begin : begin + chunk].copy()
    return total
