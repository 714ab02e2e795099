"""Adds weights in memory to a native model, each once.

Called by `encode` while a model is compiled. `packing` or `packed` supplies the bytes, which the
model reads in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import CompileOptions, Dtype
from quire.backends.cpu.library import Library
from quire.backends.cpu.lowering.native_op import StoredWeight
from quire.backends.cpu.stored_weights import (
    Place,
    expected_numbers,
    matrix_spec,
    num_bytes,
    table_spec,
)
from quire.program import Param, Rotary

_ALIGNMENT = 64


def unread_places(
    library: Library, weights: Iterable[StoredWeight], options: CompileOptions
) -> Mapping[StoredWeight, Place]:
    """Return places for the weights that share a few bytes, for a model that is built only to
    measure its size."""
    line = np.zeros(2 * _ALIGNMENT, np.uint8)
    first = line[-line.ctypes.data % _ALIGNMENT :][:1]
    places = {}
    for weight in weights:
        numbers = expected_numbers(weight, options.stored_numbers, options.dtype)
        size = num_bytes(library, weight, options.dtype, numbers)
        is_vector = weight.kind == "vector"
        data = np.zeros(size, np.uint8) if is_vector else np.broadcast_to(first, (size,))
        places[weight] = Place(data, numbers)
    return places


class WeightLoader:
    """Adds weights to one native model under construction and remembers their ids."""

    def __init__(
        self,
        library: Library,
        model: Any,
        places: Mapping[StoredWeight, Place],
        dtype: Dtype,
    ) -> None:
        """`places`: every stored weight; their bytes must outlive the model."""
        self._library = library
        self._model = model
        self._places = places
        self._dtype = dtype
        self._ids: dict[StoredWeight, int] = {}
        self._vectors: dict[tuple[StoredWeight, float], int] = {}
        self._ropes: dict[Rotary, int] = {}

    @property
    def ids(self) -> Mapping[StoredWeight, int]:
        """The ids of the matrices and tables that were added."""
        return self._ids

    def weight(self, weight: StoredWeight) -> int:
        """Return the id of a packed matrix [N, K] or a table [rows, width]."""
        if weight not in self._ids:
            self._ids[weight] = self._add(weight)
        return self._ids[weight]

    def vector(self, param: Param | None, *, plus: float = 0.0) -> int:
        """Return the id of a float32 vector [D] with `plus` added to each number; -1 for None."""
        if param is None:
            return -1
        weight = StoredWeight("vector", param)
        if (weight, plus) not in self._vectors:
            values = self._places[weight].data.view(np.float32)
            with np.errstate(invalid="ignore", over="ignore"):  # `warn_not_finite` reports these
                self._vectors[weight, plus] = self.constant(values + np.float32(plus))
        return self._vectors[weight, plus]

    def gathered(self, param: Param, places: NDArray[np.intp]) -> int:
        """Add a vector of the weight's numbers at these places and return its id."""
        return self.constant(
            self._places[StoredWeight("vector", param)].data.view(np.float32)[places]
        )

    def constant(self, values: NDArray[np.float32]) -> int:
        """Add a vector of these numbers and return its id."""
        numbers = np.ascontiguousarray(values, np.float32)
        pointer = self._library.ffi.from_buffer("float[]", numbers)
        added: int = self._library.lib.quire_add_vector(self._model, pointer, numbers.size)
        if added < 0:
            raise self._library.error("a vector cannot be loaded")
        return added

    def rope(self, rotation: Rotary | None) -> int:
        """Return the id of a rotary table; -1 for None."""
        if rotation is None:
            return -1
        if rotation not in self._ropes:
            added = self._library.lib.quire_add_rope(
                self._model,
                self._library.ffi.new("double[]", list(rotation.inv_freq)),
                len(rotation.inv_freq),
                rotation.scale,
                rotation.interleaved,
            )
            if added < 0:
                raise self._library.error("a rotary table cannot be created")
            self._set_axes(added, rotation)
            self._ropes[rotation] = added
        return self._ropes[rotation]

    def _set_axes(self, rope: int, rotation: Rotary) -> None:
        if not rotation.axes:
            return
        axes = self._library.ffi.new("int32_t[]", list(rotation.axes))
        if self._library.lib.quire_set_rope_axes(self._model, rope, axes) != 0:
            raise self._library.error("a rotary table cannot have these axes")

    def _add(self, weight: StoredWeight) -> int:
        place = self._places[weight]
        data = self._library.ffi.cast("void *", place.data.ctypes.data)
        added: int
        if weight.kind == "matrix":
            spec = matrix_spec(self._library, weight, self._dtype, place.numbers)
            added = self._library.lib.quire_add_matrix(self._model, spec, data)
        else:
            spec = table_spec(self._library, weight, place.numbers)
            added = self._library.lib.quire_add_table(self._model, spec, data)
        if added < 0:
            raise self._library.error(f"{weight} cannot be loaded")
        return added
