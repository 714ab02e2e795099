"""`CallerRows`: what a native step calls for rows that its caller gives or gets."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import StepBatch
from quire.backends.cpu.encode import Exchange
from quire.errors import BackendError
from quire.program import Program, RowsIn, RowsOut

Floats = NDArray[np.float32]


class CallerRows:
    """A function for the native library, and the rows of the step that is computed."""

    def __init__(self, ffi: Any, program: Program) -> None:
        self._ffi = ffi
        self._width = sum(
            out.dim for op in program.ops if isinstance(op, RowsIn) for out in op.outs
        )
        self._given: Floats | None = None
        self._column = 0
        """Columns of the given rows that earlier calls of the step have taken."""
        self._found: list[Floats] = []
        self.exchanges: tuple[Exchange, ...] = ()
        """By their numbers; set before the first step."""
        self.pointer = ffi.callback("quire_exchange_fn", self.exchange)

    @staticmethod
    def has(program: Program) -> bool:
        """Whether a program gives or takes rows."""
        return any(isinstance(op, RowsIn | RowsOut) for op in program.ops)

    def begin(self, batch: StepBatch) -> None:
        """A step begins. Raises BackendError unless it has the rows that the program reads."""
        self._given, self._column, self._found = batch.rows_in, 0, []
        shape = (len(batch.token_ids), self._width)
        if self._width and (self._given is None or self._given.shape != shape):
            raise BackendError(f"a step needs rows_in with {self._width} numbers for each token")

    def take(self) -> Floats | None:
        """Return the rows that the step has given, and forget them; None if it gave none."""
        found, self._found, self._given = self._found, [], None
        return np.concatenate(found, axis=1) if found else None

    def exchange(self, number: int, data: Any, num_rows: int, stride: int) -> int:
        """Take or give rows of a value. Returns 0."""
        one = self.exchanges[number]
        size = max(0, (num_rows - 1) * stride + one.row_bytes)
        memory = self._ffi.buffer(data, size) if num_rows else bytearray()
        item = one.row_bytes // one.num_columns
        stored: Any = np.float32 if item == 4 else np.uint16
        rows = np.ndarray((num_rows, one.num_columns), stored, memory, 0, (stride, item))
        if one.kind == "rows_out":
            self._found.append(rows.copy() if item == 4 else _widened(rows))
        elif self._given is not None:
            given = self._given[:, self._column : self._column + one.num_columns]
            rows[:] = given if item == 4 else _rounded(given)
            self._column += one.num_columns
        return 0


def _widened(rows: NDArray[np.uint16]) -> Floats:
    """bfloat16 as float32."""
    return (rows.astype(np.uint32) << 16).view(np.float32)


def _rounded(rows: Floats) -> NDArray[np.uint16]:
    """float32 as bfloat16, rounded to the nearest, to even numbers among two."""
    bits = np.ascontiguousarray(rows, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
