"""The weights that a native model holds, with their formats and memory layouts.

`packing` computes the bytes of a `StoredWeight` from a checkpoint, `packed` finds the same bytes in
a file, and `weights` adds them to a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.backends.base import Dtype
from quire.backends.cpu.library import DTYPES, Library
from quire.backends.cpu.lowering.native_op import NativeOp, StoredWeight
from quire.errors import BackendError
from quire.program import Program
from quire.program.values import BITS, GroupedFormat, Param, WeightFormat


def stored_weights(ops: Sequence[NativeOp], program: Program) -> tuple[StoredWeight, ...]:
    """Return the weights that the ops need, once each, in order of use, then the vectors."""
    found = dict.fromkeys(weight for op in ops for weight in op.weights)
    vectors = [StoredWeight("vector", param) for param in program.params() if len(param.shape) == 1]
    return (*found, *vectors)


def num_bytes(library: Library, weight: StoredWeight, dtype: Dtype) -> int:
    """Bytes of a weight; for a table, the maximum. Raises BackendError for a weight that cannot be
    stored."""
    param = weight.param
    if weight.kind == "vector":
        return 4 * param.num_elements
    if weight.kind == "table":
        if param.format != "dense":
            raise BackendError(f"the table {param} must have the format dense, not {param.format}")
        return (2 if dtype == "bfloat16" else 4) * param.num_elements
    size: int = library.lib.quire_matrix_bytes(matrix_spec(library, weight, dtype))
    if size < 0:
        raise library.error(f"weight {param} cannot be stored")
    return size


def layout(library: Library, weight: StoredWeight, dtype: Dtype, size: int) -> str:
    """Return a text that describes the layout of the `size` bytes of a weight. Equal texts mean
    equal layouts."""
    param = weight.param
    shape = f"[{', '.join(map(str, param.shape))}]"
    if weight.kind != "matrix":
        return f"{'float32' if size == 4 * param.num_elements else 'bfloat16'} {shape}"
    name = dtype if param.format == "dense" else str(param.format)
    text = library.lib.quire_format_layout(_format(library, param.format, dtype))
    if text == library.ffi.NULL:
        raise library.error(f"weight {param} cannot be stored")
    return f"{name} {shape}, {library.ffi.string(text).decode()}"


def has_scales(param: Param) -> bool:
    """Whether a scale and an offset of each column follow the strips of a matrix."""
    return param.format in BITS


def matrix_spec(library: Library, weight: StoredWeight, dtype: Dtype) -> Any:
    """Return the quire_matrix_spec of a matrix."""
    code = _format(library, weight.param.format, dtype)
    *experts, n, k = weight.param.shape
    return library.ffi.new("quire_matrix_spec *", (n, k, code, weight.glu, *(experts or [1])))


def table_spec(library: Library, weight: StoredWeight, size: int) -> Any:
    """Return the quire_table_spec of a table that has `size` bytes."""
    is_wide = size == 4 * weight.param.num_elements
    dtype = library.dtype("float32" if is_wide else "bfloat16")
    return library.ffi.new("quire_table_spec *", (*weight.param.shape, dtype))


def _format(library: Library, weight_format: WeightFormat | GroupedFormat, dtype: Dtype) -> int:
    """Return the quire_format of a matrix in a model of this dtype, including the quire_grouping of
    a grouped format."""
    if isinstance(weight_format, GroupedFormat):
        return _grouped(library, weight_format, dtype)
    if weight_format == "dense":
        return library.code(f"QUIRE_FORMAT_{DTYPES[dtype]}")
    weight_bits, activation_bits = BITS[weight_format]
    return library.code(f"QUIRE_FORMAT_INT{weight_bits}_A{activation_bits}")


def _grouped(library: Library, grouped: GroupedFormat, dtype: Dtype) -> int:
    code = library.code
    log2 = grouped.group.bit_length() - 1
    if grouped.group != 1 << log2:
        raise BackendError(f"weights must be in groups of 16, 32, 64 or 128, not {grouped.group}")
    return (
        code(f"QUIRE_FORMAT_GROUPED_{_activations(grouped, dtype)}")
        | log2 << code("QUIRE_GROUP_SHIFT")
        | code(f"QUIRE_TABLE_{grouped.table.upper()}") << code("QUIRE_TABLE_SHIFT")
        | (grouped.scale == "f16") * code("QUIRE_GROUPS_HALF")
        | (grouped.scale == "nested") * code("QUIRE_GROUPS_NESTED")
        | (grouped.scale == "e4m3") * code("QUIRE_GROUPS_E4M3")
        | grouped.has_order * code("QUIRE_GROUPS_ORDERED")
        | grouped.has_zeros * code("QUIRE_GROUPS_ZEROS")
        | grouped.has_minima * code("QUIRE_GROUPS_MINIMA")
    )


def _activations(grouped: GroupedFormat, dtype: Dtype) -> str:
    """Return the type of activations in the native format's name. Values of E4M3 are exact in
    bfloat16; the values of float tables with 16 entries are not and need float32."""
    if grouped.is_float:
        return "BF16" if grouped.table == "e4m3" and dtype == "bfloat16" else "F32"
    return f"A{grouped.activation_bits}" + "_BLOCKS" * grouped.activation_blocks
