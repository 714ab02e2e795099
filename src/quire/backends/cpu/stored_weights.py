"""Which weights a native model holds, in which form, and how each lies in memory.

What `packing` makes from a checkpoint, `packed` finds in a file and `weights` adds to a model
are the same bytes, under the same `StoredWeight`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quire.backends.base import Dtype
from quire.backends.cpu.library import Library
from quire.backends.cpu.lowering import NativeOp
from quire.backends.cpu.lowering.native_ops import (
    NativeEmbed,
    NativeLinear,
    NativeLogits,
    NativePositions,
)
from quire.errors import BackendError
from quire.program import Param, Program
from quire.program.values import WeightFormat

_FORMATS: dict[WeightFormat, dict[Dtype, int]] = {
    "dense": {"float32": 0, "bfloat16": 1},
    "int8": {"float32": 3, "bfloat16": 3},
    "int8_w8a8": {"float32": 2, "bfloat16": 2},
    "int4": {"float32": 5, "bfloat16": 5},
    "int4_w4a8": {"float32": 4, "bfloat16": 4},
}
"""Of `Format` in linear.h."""

WEIGHT_FORMATS = tuple(_FORMATS)


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight as a native model holds it.

    A matrix is packed for products, a table lies row by row for lookups, a vector is float32.
    """

    kind: Literal["matrix", "table", "vector"]
    param: Param
    glu: bool = False
    """Of a matrix: gate and up lie side by side."""

    def __str__(self) -> str:
        return f"{self.kind} {self.param.name}" + " (gate and up)" * self.glu

    @property
    def tensors(self) -> tuple[str, ...]:
        """The checkpoint's tensors in it, in order."""
        parts = self.param.parts
        return tuple(part.name + " transposed" * part.transposed for part in parts)


def stored_weights(ops: Sequence[NativeOp], program: Program) -> tuple[StoredWeight, ...]:
    """What the ops need, once each, in the order of their use.

    A tied head is looked up in its packed form: the table is not held twice.
    """
    heads = {op.weight.name for op in ops if isinstance(op, NativeLogits)}
    found: dict[StoredWeight, None] = {}
    for op in ops:
        if isinstance(op, NativeEmbed):
            kind: Literal["matrix", "table"] = "matrix" if op.table.name in heads else "table"
            found[StoredWeight(kind, op.table)] = None
        elif isinstance(op, NativePositions):
            found[StoredWeight("table", op.table)] = None
        elif isinstance(op, NativeLinear):
            found[StoredWeight("matrix", op.weight, op.glu)] = None
        elif isinstance(op, NativeLogits):
            found[StoredWeight("matrix", op.weight)] = None
    vectors = [StoredWeight("vector", param) for param in program.params() if len(param.shape) == 1]
    return (*found, *vectors)


def num_bytes(library: Library, weight: StoredWeight, dtype: Dtype) -> int:
    """Bytes of a weight; the most that a table may take. Raises BackendError for what cannot be."""
    param = weight.param
    if weight.kind == "vector":
        return 4 * param.num_elements
    if weight.kind == "table":
        if param.format != "dense":
            raise BackendError(f"the table {param} is never multiplied and stays as it is")
        return (2 if dtype == "bfloat16" else 4) * param.num_elements
    size: int = library.lib.quire_matrix_bytes(matrix_spec(library, weight, dtype))
    if size < 0:
        raise library.error(f"weight {param} cannot be held")
    return size


def layout(library: Library, weight: StoredWeight, dtype: Dtype, size: int) -> str:
    """What the `size` bytes of a weight depend on, in words: equal words, equal meaning."""
    param = weight.param
    shape = f"[{', '.join(map(str, param.shape))}]"
    if weight.kind != "matrix":
        return f"{'float32' if size == 4 * param.num_elements else 'bfloat16'} {shape}"
    name = dtype if param.format == "dense" else param.format
    text = library.lib.quire_format_layout(_FORMATS[param.format][dtype])
    if text == library.ffi.NULL:
        raise library.error(f"weight {param} cannot be held")
    return f"{name} {shape}, {library.ffi.string(text).decode()}"


def matrix_spec(library: Library, weight: StoredWeight, dtype: Dtype) -> Any:
    """quire_matrix_spec."""
    code = _FORMATS[weight.param.format][dtype]
    return library.ffi.new("quire_matrix_spec *", (*weight.param.shape, code, weight.glu))


def table_spec(library: Library, weight: StoredWeight, size: int) -> Any:
    """quire_table_spec of a table that has `size` bytes."""
    is_wide = size == 4 * weight.param.num_elements
    dtype = library.lib.QUIRE_F32 if is_wide else library.lib.QUIRE_BF16
    return library.ffi.new("quire_table_spec *", (*weight.param.shape, dtype))
