"""Brings a program's weights into a native model: each Param once, packed in parallel.

Called while a model is compiled. Source pages are released as soon as they are packed, so that
loading needs little more memory than the weights themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from quire.backends.base import Dtype
from quire.backends.cpu.library import Library
from quire.backends.cpu.lowering import NativeOp
from quire.backends.cpu.lowering.native_ops import (
    NativeEmbed,
    NativeLinear,
    NativeLogits,
    NativePositions,
    Rotation,
)
from quire.errors import BackendError, CheckpointError
from quire.program import Param, Program
from quire.program.values import WeightFormat
from quire.weights import HostTensor, WeightStore

_SOURCE_DTYPES = {"F32": "QUIRE_F32", "BF16": "QUIRE_BF16", "F16": "QUIRE_F16"}
_FORMATS: dict[WeightFormat, dict[Dtype, int]] = {
    "dense": {"float32": 0, "bfloat16": 1},
    "int8": {"float32": 3, "bfloat16": 3},
    "int8_w8a8": {"float32": 2, "bfloat16": 2},
    "int4": {"float32": 5, "bfloat16": 5},
    "int4_w4a8": {"float32": 4, "bfloat16": 4},
}
"""Of `Format` in linear.h."""

WEIGHT_FORMATS = tuple(_FORMATS)


def weight_bytes(library: Library, ops: Sequence[NativeOp], program: Program, dtype: Dtype) -> int:
    """What `WeightLoader` would hold for these ops of the program, without loading anything.

    A table of a float32 model counts as float32: only its file tells whether less is enough.
    """
    item_bytes = 2 if dtype == "bfloat16" else 4
    matrices = {(op.weight, op.glu) for op in ops if isinstance(op, NativeLinear)}
    matrices |= {(op.weight, False) for op in ops if isinstance(op, NativeLogits)}
    tables = {op.table for op in ops if isinstance(op, NativeEmbed | NativePositions)}
    tables -= {param for param, _ in matrices}
    total = sum(item_bytes * table.num_elements for table in tables)
    for param, glu in matrices:
        size = library.lib.quire_matrix_bytes(_matrix_spec(library, param, dtype, glu))
        if size < 0:
            raise library.error(f"weight {param} cannot be held")
        total += size
    vectors = (param for param in program.params() if len(param.shape) == 1)
    return total + sum(4 * vector.num_elements for vector in vectors)


def _matrix_spec(library: Library, param: Param, dtype: Dtype, glu: bool) -> Any:
    """quire_matrix_spec."""
    return library.ffi.new(
        "quire_matrix_spec *", (*param.shape, _FORMATS[param.format][dtype], glu)
    )


class WeightLoader:
    """Adds weights to one native model under construction and remembers their ids."""

    def __init__(self, library: Library, model: Any, store: WeightStore, dtype: Dtype) -> None:
        self._library = library
        self._model = model
        self._store = store
        self._dtype = dtype
        self._matrices: dict[tuple[str, bool], int] = {}
        self._tables: dict[str, int] = {}
        self._vectors: dict[str, int] = {}
        self._ropes: dict[Rotation, int] = {}

    def matrix(self, param: Param, *, glu: bool = False) -> int:
        """The id of a packed [N, K] weight."""
        key = (param.name, glu)
        if key not in self._matrices:
            spec = _matrix_spec(self._library, param, self._dtype, glu)
            tensors = self._tensors(param)
            parts = self._parts(param, tensors)
            self._matrices[key] = self._added(
                param, self._library.lib.quire_add_matrix(self._model, spec, parts, len(parts))
            )
            self._release(tensors)
        return self._matrices[key]

    def table(self, param: Param) -> int:
        """The id of a table [rows, width] for lookups, as narrow as its source allows."""
        if param.format != "dense":
            raise BackendError(f"the table {param} is never multiplied and stays as it is")
        if param.name not in self._tables:
            tensors = self._tensors(param)
            narrow = self._dtype == "bfloat16" or all(t.dtype == "BF16" for t in tensors)
            held = self._library.lib.QUIRE_BF16 if narrow else self._library.lib.QUIRE_F32
            parts = self._parts(param, tensors)
            self._tables[param.name] = self._added(
                param,
                self._library.lib.quire_add_table(
                    self._model, *param.shape, held, parts, len(parts)
                ),
            )
            self._release(tensors)
        return self._tables[param.name]

    def vector(self, param: Param | None) -> int:
        """The id of a [D] vector, held in float32; -1 for none."""
        if param is None:
            return -1
        if param.name not in self._vectors:
            tensors = self._tensors(param)
            values = np.concatenate([tensor.to_float32().reshape(-1) for tensor in tensors])
            self._vectors[param.name] = self.constant(values)
        return self._vectors[param.name]

    def constant(self, values: np.ndarray[Any, np.dtype[np.float32]]) -> int:
        """The id of a new vector of these numbers."""
        held = np.ascontiguousarray(values, np.float32)
        pointer = self._library.ffi.from_buffer("float[]", held)
        added: int = self._library.lib.quire_add_vector(self._model, pointer, held.size)
        if added < 0:
            raise self._library.error("a vector cannot be loaded")
        return added

    def rope(self, rotation: Rotation | None) -> int:
        """The id of a rotary table; -1 for none."""
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
                raise self._library.error("a rotary table cannot be made")
            self._ropes[rotation] = added
        return self._ropes[rotation]

    def _tensors(self, param: Param) -> list[HostTensor]:
        tensors = []
        for part in param.parts:
            tensor = self._store.get(part.name)
            if tensor.shape != part.shape:
                raise CheckpointError(
                    f"{tensor.file}: tensor {part.name!r} has shape {list(tensor.shape)}, "
                    f"not {list(part.shape)}"
                )
            tensors.append(tensor)
        return tensors

    def _parts(self, param: Param, tensors: list[HostTensor]) -> Any:
        """quire_part records; they point into the tensors, which the caller keeps alive."""
        ffi = self._library.ffi
        parts = ffi.new("quire_part[]", len(tensors))
        for record, part, tensor in zip(parts, param.parts, tensors, strict=True):
            record.data = ffi.cast("void *", tensor.data.ctypes.data)
            record.rows = part.shape[1] if part.transposed else part.shape[0]
            record.dtype = getattr(self._library.lib, _SOURCE_DTYPES[tensor.dtype])
            record.transposed = part.transposed
        return parts

    def _added(self, param: Param, new_id: int) -> int:
        if new_id < 0:
            raise self._library.error(f"weight {param} cannot be loaded")
        return new_id

    def _release(self, tensors: list[HostTensor]) -> None:
        for tensor in tensors:
            self._store.release(tensor.name)
