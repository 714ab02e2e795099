"""From checkpoint tensors to the float32 arrays that the reference computes with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quire.backends.reference.quantised import round_weights
from quire.errors import CheckpointError
from quire.program import Param, Tensor
from quire.weights import WeightStore

Floats = NDArray[np.float32]


def load_param(param: Param, store: WeightStore, bad_names: list[str]) -> Floats:
    """The slot's parts, transposed where the checkpoint holds them so, stacked. float32.

    A matrix of a quantised format is rounded to it. Names of tensors that are not finite are
    appended to `bad_names`.
    """
    parts = [_load_part(part, store) for part in param.parts]
    if len(param.shape) == 1:
        parts = [part.reshape(-1) for part in parts]
    for part, values in zip(param.parts, parts, strict=True):
        if not np.isfinite(values).all():
            bad_names.append(part.name)
    array = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if array.size != param.num_elements or array.shape[-1] not in (param.shape[-1], array.size):
        raise CheckpointError(f"the parts of {param} give {list(array.shape)}")
    rows = np.ascontiguousarray(array).reshape(-1, param.shape[-1])
    return round_weights(rows, param.format).reshape(param.shape)


def _load_part(part: Tensor, store: WeightStore) -> Floats:
    tensor = store.get(part.name)
    if tensor.shape != part.shape:
        raise CheckpointError(
            f"{tensor.file}: tensor {part.name} is {list(tensor.shape)}, not {list(part.shape)}"
        )
    # A copy: the store may take the pages of its file back.
    array = np.array(tensor.to_float32())
    store.release(part.name)
    if part.rows is not None:
        array = np.take(array, _indices(part.rows), axis=max(0, array.ndim - 2))
    if part.columns is not None:
        array = np.take(array, _indices(part.columns), axis=-1)
    return array.swapaxes(-1, -2) if part.transposed else array


def _indices(runs: Sequence[tuple[int, int]]) -> NDArray[np.intp]:
    return np.concatenate([np.arange(first, first + count) for first, count in runs])
