"""Finds a model's weights in a packed file, which is memory-mapped and used in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import Dtype
from quire.backends.cpu.library import Library
from quire.backends.cpu.lowering.native_op import StoredWeight
from quire.backends.cpu.stored_weights import layout, num_bytes
from quire.weights.packed_file import PackedFile


def find_packed(
    library: Library, file: PackedFile, weights: Sequence[StoredWeight], dtype: Dtype
) -> Mapping[StoredWeight, NDArray[np.uint8]]:
    """Read the file into memory and return views of it. Raises CheckpointError unless it has all
    weights in the layout that this library reads."""
    file.populate()
    return {weight: _find(library, file, weight, dtype) for weight in weights}


def _find(
    library: Library, file: PackedFile, weight: StoredWeight, dtype: Dtype
) -> NDArray[np.uint8]:
    size = num_bytes(library, weight, dtype)
    narrow = num_bytes(library, weight, "bfloat16") if weight.kind == "table" else size
    if file.num_bytes(str(weight)) == narrow:  # a float32 model may hold a bfloat16 table
        size = narrow
    text = layout(library, weight, dtype, size)
    return file.section(str(weight), weight.tensors, (text,), size)
