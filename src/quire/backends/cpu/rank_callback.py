"""`RankCallback`: what a native step calls to exchange a value over the links of a `RankGroup`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from quire.backends.cpu.encode import Exchange
from quire.ranks import RankGroup

if TYPE_CHECKING:
    from quire.backends.cpu.caller_rows import CallerRows


class RankCallback:
    """A function for the native library. An exception of it fails the step, which raises it."""

    def __init__(self, ffi: Any, group: RankGroup, caller: CallerRows | None = None) -> None:
        """`caller`: who takes or gives rows, which are exchanged with no other rank."""
        self._ffi = ffi
        self._caller = caller
        self.group = group
        self.exchanges: tuple[Exchange, ...] = ()
        """By their numbers; set before the first step."""
        self.error: BaseException | None = None
        self.pointer = ffi.callback("quire_exchange_fn", self._exchange)

    def _exchange(self, number: int, data: Any, num_rows: int, stride: int) -> int:
        one = self.exchanges[number]
        try:
            if self._caller is not None and one.kind in ("rows_in", "rows_out"):
                return self._caller.exchange(number, data, num_rows, stride)
            size = max(0, (num_rows - 1) * stride + one.row_bytes)
            memory = self._ffi.buffer(data, size) if num_rows else bytearray()
            rows = np.ndarray((num_rows, one.row_bytes), np.uint8, memory, 0, (stride, 1))
            if one.kind == "columns":
                self.group.columns(rows, one.spans)
            elif one.kind == "owner":
                self.group.owned_rows(rows, one.spans)
            elif one.kind == "send":
                self.group.send(rows)
            else:
                self.group.receive(rows)
        except BaseException as error:
            self.error = error
            return -1
        return 0
