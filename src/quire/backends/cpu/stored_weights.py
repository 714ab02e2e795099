"""The weights that a native model holds, with their formats and memory layouts.

`packing` computes the bytes of a `StoredWeight` from a checkpoint, `packed` finds the same bytes in
a file, and `weights` adds them to a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import Dtype
from quire.backends.cpu.library import DTYPES, Library
from quire.backends.cpu.lowering.native_op import NativeOp, StoredWeight
from quire.config.stored_numbers import StoredNumbers
from quire.errors import BackendError
from quire.program import Program
from quire.program.values import BITS, GroupedFormat, Param, WeightFormat

Bytes = NDArray[np.uint8]
Numbers = Literal["float32", "bfloat16", "float16"]
"""The types in which the numbers of a dense weight may be stored."""


class Place(NamedTuple):
    """The packed bytes of a weight and, if it is dense, the type of its numbers."""

    data: Bytes
    numbers: Numbers


def stored_numbers(weight: StoredWeight, sources: Sequence[str], dtype: Dtype) -> Numbers:
    """Return the type in which a dense weight is stored, whose tensors in the checkpoint have the
    types `sources`. A float32 model keeps a checkpoint's 16-bit numbers, which are multiplied as
    float32, so that results are those of float32 weights."""
    kept: dict[str, Numbers] = {"BF16": "bfloat16"}
    if weight.kind == "matrix":
        kept["F16"] = "float16"
    if dtype == "float32" and weight.kind != "vector" and len(set(sources)) == 1:
        return kept.get(sources[0], "float32")
    return "float32" if dtype == "float32" else "bfloat16"


def expected_numbers(
    weight: StoredWeight, checkpoint: StoredNumbers | None, dtype: Dtype
) -> Numbers:
    """Return the type in which a dense weight will be stored. `checkpoint`: None: it has the
    model's dtype."""
    if checkpoint is None:
        return stored_numbers(weight, (), dtype)
    sources = [checkpoint.type_of(part.name) for part in weight.param.parts]
    return stored_numbers(weight, sources, dtype)


def stored_weights(ops: Sequence[NativeOp], program: Program) -> tuple[StoredWeight, ...]:
    """Return the weights that the ops need, once each, in order of use, then the vectors."""
    found = dict.fromkeys(weight for op in ops for weight in op.weights)
    vectors = [StoredWeight("vector", param) for param in program.params() if len(param.shape) == 1]
    return (*found, *vectors)


def num_bytes(
    library: Library, weight: StoredWeight, dtype: Dtype, numbers: Numbers | None = None
) -> int:
    """Bytes of a weight in a model of this dtype; the maximum if the type of its numbers is not
    given. Raises BackendError for a weight that cannot be stored."""
    param = weight.param
    if weight.kind == "vector":
        return 4 * param.num_elements
    if weight.kind == "table":
        if param.format != "dense":
            raise BackendError(f"the table {param} must have the format dense, not {param.format}")
        return (2 if (numbers or dtype) == "bfloat16" else 4) * param.num_elements
    size: int = library.lib.quire_matrix_bytes(matrix_spec(library, weight, dtype, numbers))
    if size < 0:
        raise library.error(f"weight {param} cannot be stored")
    return size


def layout(
    library: Library, weight: StoredWeight, dtype: Dtype, numbers: Numbers | None = None
) -> str:
    """Return a text that describes the layout of a weight. Equal texts mean equal layouts."""
    param = weight.param
    shape = f"[{', '.join(map(str, param.shape))}]"
    if weight.kind != "matrix":
        return f"{'float32' if weight.kind == 'vector' else numbers or dtype} {shape}"
    name = (numbers or dtype) if param.format == "dense" else str(param.format)
    code = _format(library, param.format, dtype, numbers)
    text = library.lib.quire_format_layout(code)
    if text == library.ffi.NULL:
        raise library.error(f"weight {param} cannot be stored")
    return f"{name} {shape}, {library.ffi.string(text).decode()}"


def has_scales(param: Param) -> bool:
    """Whether a scale and an offset of each column follow the strips of a matrix."""
    return param.format in BITS


def matrix_spec(
    library: Library, weight: StoredWeight, dtype: Dtype, numbers: Numbers | None = None
) -> Any:
    """Return the quire_matrix_spec of a matrix."""
    code = _format(library, weight.param.format, dtype, numbers)
    *experts, n, k = weight.param.shape
    return library.ffi.new("quire_matrix_spec *", (n, k, code, weight.glu, *(experts or [1])))


def table_spec(library: Library, weight: StoredWeight, numbers: Numbers) -> Any:
    """Return the quire_table_spec of a table."""
    return library.ffi.new("quire_table_spec *", (*weight.param.shape, library.dtype(numbers)))


def _format(
    library: Library,
    weight_format: WeightFormat | GroupedFormat,
    dtype: Dtype,
    numbers: Numbers | None,
) -> int:
    """Return the quire_format of a matrix in a model of this dtype, including the quire_grouping of
    a grouped format."""
    if isinstance(weight_format, GroupedFormat):
        return _grouped(library, weight_format, dtype)
    if weight_format == "dense" and numbers not in (None, dtype):
        return library.code("QUIRE_FORMAT_HELD_" + ("F16" if numbers == "float16" else "BF16"))
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
