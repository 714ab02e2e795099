"""`Readout`: copies values of a step to the host, which waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.device import Device
from quire.backends.cuda.kernel import ARRAY_TYPES
from quire.backends.cuda.lowering.context import Emit, Rows
from quire.backends.cuda.lowering.results import PIECE
from quire.backends.cuda.step import Step
from quire.program import Op, RowsOut, Value

if TYPE_CHECKING:
    from quire.backends.cuda.plan import Plan

Floats = NDArray[np.float32]
Ops = Sequence[tuple[Op, Emit]]


class Readout:
    """Reads what a program has computed."""

    def __init__(self, plan: Plan, device: Device) -> None:
        self._plan, self._device = plan, device

    def results(self, step: Step, num_computed: int | None = None) -> Floats:
        """The rows of the result, which leave the device piece by piece. `num_computed`: so many
        rows, which are computed already and are one piece."""
        if num_computed is not None:
            found = np.empty((num_computed, self._plan.program.result_width), np.float32)
            self._download(found)
            return found
        found = np.empty((step.num_taken, self._plan.program.result_width), np.float32)
        for first in range(0, step.num_taken, PIECE):
            piece = found[first : first + PIECE]
            for action in self._plan.result.emit(step, first, len(piece)):
                self._device.run(action)
            self._download(piece)
        return found

    def _download(self, out: Floats) -> None:
        """A piece of the result."""
        rows = self._plan.result.rows
        if rows.type_name == "fp32" and rows.stride == rows.width:
            self._device.download(rows.buffer, out)
        else:
            out[:] = self._rows(rows, len(out))

    def given(self, step: Step, ops: Ops) -> Floats | None:
        """The rows that the caller of the step gets."""
        if self._plan.program.num_sources and not step.batch.want_rows:
            return None
        lowering = self._plan.lowering
        values = [op.x for op, _ in ops if isinstance(op, RowsOut)]
        found = [self._rows(lowering.given[x], lowering.num_rows(x, step)) for x in values]
        return np.concatenate(found, axis=1) if found else None

    def value(self, value: Value, step: Step) -> Floats:
        """All rows of a value."""
        lowering = self._plan.lowering
        return self._rows(lowering.rows[value], lowering.num_rows(value, step))

    def _rows(self, rows: Rows, count: int) -> Floats:
        """Rows of a value as the host reads them."""
        numbers = (count - 1) * rows.stride + rows.width if count else 0
        flat = np.zeros(count * rows.stride, ARRAY_TYPES[rows.type_name])
        self._device.download(rows.buffer, flat[:numbers])
        return rows.decoded(flat.reshape(count, rows.stride)[:, : rows.width])
