"""`GivenRowPlaces`: puts the rows that are given with a step into the native batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import StepBatch, TokenRows
from quire.backends.given_rows import RowWidths
from quire.config.kv_layout import KVLayout
from quire.program import Embed, Program


@dataclass(frozen=True, slots=True)
class GivenRowPlaces:
    """Widths and places that a program has for given rows."""

    widths: RowWidths
    input_scale: float
    """Factor of rows in place of embeddings."""
    kv_at: NDArray[np.int32]
    """[G, slots]; where K of a layer begins in a row of K and V."""

    @classmethod
    def of(cls, program: Program, layout: KVLayout) -> GivenRowPlaces:
        """The places for a program whose K and V are stored in this layout."""
        widths = RowWidths.of(program)
        scales = [op.given_scale for op in program.ops if isinstance(op, Embed)]
        at = np.zeros((len(layout.groups), max(1, layout.num_slots)), np.int32)
        if widths.kv:
            places = layout.places()
            for layer, place in places.items():
                at[place.group, place.slot] = layer * (widths.kv // len(places))
        return cls(widths, scales[0] if scales else 1.0, at)

    def fill(self, ffi: Any, native: Any, batch: StepBatch, alive: list[Any]) -> None:
        """Fill in the rows of a step. Raises BackendError for rows that do not fit. `alive` keeps
        the memory alive."""
        self.widths.check(batch)
        count = len(batch.token_ids)
        if batch.input_rows:
            given = [self.widths.widened(one) for one in batch.input_rows]
            native.input_rows = _pointers(ffi, given, count, alive)
            native.input_scale = self.input_scale
        if batch.given_kv:
            native.given_kv = _pointers(ffi, batch.given_kv, count, alive)
            native.given_kv_at = ffi.from_buffer("int32_t[]", self.kv_at)


def _pointers(ffi: Any, given: list[TokenRows], num_tokens: int, alive: list[Any]) -> Any:
    """A pointer to the row of each token, null if it has none."""
    places = np.zeros(num_tokens, np.uintp)
    for one in given:
        rows = np.ascontiguousarray(one.rows, np.float32)
        begin, step = rows.ctypes.data, rows.strides[0]
        places[one.first : one.first + len(rows)] = begin + step * np.arange(len(rows))
        alive.append(rows)
    pointers = ffi.from_buffer("float *[]", places)
    alive += [places, pointers]
    return pointers
