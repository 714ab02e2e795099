"""The pieces of requests' states as views, for the twins of recurrent layers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.twins.numbers import Floats
from quire.backends.reference.ops.recurrent import RequestRows

Integers = NDArray[np.int32]
_UNIT = 16


def requests_with_rows(
    cache: Floats, tables: Integers, entries: Integers, begins: Integers, requests: Integers,
    count: int, pieces: int, width: int, table_width: int, stride_block: int,
) -> Iterator[tuple[int, RequestRows]]:  # fmt: skip
    """The number of each of `count` requests that has rows in the step, and its state: `pieces`
    arrays of `width` numbers."""
    for request in range(count):
        begin, end, position, _ = requests[4 * request : 4 * request + 4].tolist()
        if begin == end:
            continue
        own = []
        for piece in range(pieces):
            block = int(tables[request * table_width + entries[piece]])
            first = block * int(stride_block) + int(begins[piece]) * _UNIT
            own.append(cache[first : first + width])
            if position == 0:
                own[-1][:] = 0
        yield request, RequestRows(slice(begin, end), position, own)
