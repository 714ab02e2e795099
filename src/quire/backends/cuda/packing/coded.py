"""Forms of matrices and tables of codes: the project's own formats, and those of checkpoints."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.packing.blocks import parts_of_blocks
from quire.backends.cuda.packing.form import Form
from quire.backends.cuda.packing.layout import CodedLayout, layout_of, split_halves
from quire.backends.reference.quantised import four_bit_rows, whole_rows
from quire.backends.reference.weights import load_param
from quire.config.records import Dtype
from quire.errors import BackendError, CheckpointError
from quire.program import Param, Tensor
from quire.program.values import GroupedFormat
from quire.weights import HostTensor, WeightStore
from quire.weights.quantised.groups import TABLES, Groups

Arrays = Mapping[str, NDArray[Any]]
Floats = NDArray[np.float32]
_FLOATS = ("scales", "minima")
_PIECE = 1 << 20
"""Numbers that a thread rounds at once."""


class _CodedForm(Form):
    """The arrays of `CodedLayout`, one after the other."""

    def num_bytes(self, param: Param, dtype: Dtype) -> int:
        """Bytes of all arrays. Raises BackendError for a format that no kernel reads."""
        del dtype
        return layout_of(param).num_bytes


class RoundedForm(_CodedForm):
    """The project's own formats: integers of 8 or 4 bits with a scale for each row."""

    def __init__(self, round_rows: Callable[[Floats], Arrays]) -> None:
        """`round_rows`: from numbers [N, K] to arrays of `CodedLayout`."""
        self._round_rows = round_rows

    def pack(
        self, param: Param, dtype: Dtype, store: WeightStore, bad_names: list[str]
    ) -> NDArray[np.generic]:
        """Rounded as the reference does, some rows at a time."""
        del dtype
        numbers = load_param(replace(param, format="dense"), store, bad_names)
        rows = numbers.reshape(-1, param.shape[-1])
        step = max(1, _PIECE // rows.shape[1])
        pieces = [rows[first : first + step] for first in range(0, len(rows), step)]
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            return laid_out(layout_of(param), _joined(list(threads.map(self._round_rows, pieces))))


def eight_bits(weight: Floats) -> Arrays:
    """Integers from -127 to 127."""
    integers, scales = whole_rows(weight)
    return {"codes": np.nan_to_num(integers).astype(np.int8).view(np.uint8), "scales": scales}


def four_bits(weight: Floats) -> Arrays:
    """Integers code * step - offset, with steps and offsets of groups."""
    found = four_bit_rows(weight)
    codes, steps, offsets = (
        np.nan_to_num(numbers).astype(np.uint8).reshape(len(weight), -1)
        for numbers in (found.codes, found.steps, found.offsets)
    )
    return {"codes": codes, "steps": steps, "offsets": offsets, "scales": found.scales}


class GroupedForm(_CodedForm):
    """Codes of a checkpoint, which are not rounded again."""

    def pack(
        self, param: Param, dtype: Dtype, store: WeightStore, bad_names: list[str]
    ) -> NDArray[np.generic]:
        """Raises CheckpointError for tensors of another format."""
        del dtype
        found = [_arrays_of(part, param, store, bad_names) for part in param.parts]
        joined = _joined(found)
        if "order" in joined:
            order = found[0]["order"]
            if any(not np.array_equal(one["order"], order) for one in found):
                raise CheckpointError(f"the parts of {param} have columns of different orders")
            joined["order"] = order
        return laid_out(layout_of(param), joined)


def _arrays_of(
    part: Tensor, param: Param, store: WeightStore, bad_names: list[str]
) -> dict[str, NDArray[Any]]:
    """The arrays of a part, row after row."""
    tensor, held = store.stored(part.name), _checked_format(part, param)
    _check_tensor(tensor, part, param)
    rows = math.prod(part.shape[:-1])
    if tensor.block_type is not None:
        arrays = parts_of_blocks(tensor.data, tensor.block_type).named(rows)
    else:
        arrays = _of_groups(Groups.from_bytes(tensor.data, (rows, part.shape[-1]), held))
    is_bad = not all(np.isfinite(arrays[name]).all() for name in arrays if name in _FLOATS)
    codes = arrays["codes"]
    if held.table == "e4m3":
        is_nan = codes & 127 == 127
        padded = np.pad(is_nan, ((0, 0), (0, -codes.shape[1] % held.group)))
        of_group = padded.reshape(rows, -1, held.group).any(axis=2)
        arrays["scales"] = np.where(of_group, np.nan, arrays["scales"])
        arrays["codes"], is_bad = np.where(is_nan, 0, codes), is_bad or bool(is_nan.any())
    elif held.code_bits > 4:
        arrays["codes"] = TABLES[held.table].astype(np.int8)[codes].view(np.uint8)
    if is_bad:
        bad_names.append(part.name)
    store.release(part.name)
    return _own_rows(arrays, part)


def _of_groups(groups: Groups) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any] | None] = {
        "codes": groups.codes, "scales": groups.group_scales(), "zeros": groups.zeros,
        "minima": groups.minima, "order": groups.order,
    }  # fmt: skip
    return {name: one for name, one in arrays.items() if one is not None}


def _own_rows(arrays: dict[str, NDArray[Any]], part: Tensor) -> dict[str, NDArray[Any]]:
    """The rows that the slot has, of each expert's matrix."""
    if part.rows is None:
        return arrays
    own = np.concatenate([np.arange(first, first + count) for first, count in part.rows])
    firsts = np.arange(0, math.prod(part.shape[:-1]), part.shape[-2])
    rows = (firsts[:, None] + own).reshape(-1)
    return {name: one if name == "order" else one[rows] for name, one in arrays.items()}


def _checked_format(part: Tensor, param: Param) -> GroupedFormat:
    held = param.format
    if not isinstance(held, GroupedFormat) or part.transposed or part.columns is not None:
        raise BackendError(f"the CUDA backend cannot divide the columns of {part.name!r}")
    return held


def _check_tensor(tensor: HostTensor, part: Tensor, param: Param) -> None:
    wanted, where = param.format, f"{tensor.file}: tensor {part.name!r}"
    if tensor.shape != part.shape:
        raise CheckpointError(f"{where} is {list(tensor.shape)}, not {list(part.shape)}")
    if (
        not isinstance(wanted, GroupedFormat)
        or tensor.format is None
        or tensor.format.with_activations_of(wanted) != wanted
    ):
        raise CheckpointError(
            f"{where} is stored as {tensor.format or 'numbers'}, but quantization_config in "
            f"config.json requires {wanted}"
        )


def _joined(pieces: Sequence[Arrays]) -> dict[str, NDArray[Any]]:
    """The arrays of all rows."""
    return {name: np.concatenate([one[name] for one in pieces]) for name in pieces[0]}


def laid_out(layout: CodedLayout, arrays: Arrays) -> NDArray[np.uint8]:
    """The bytes of a matrix, given its codes [N, K] and its numbers [N] or [N, groups]."""
    out = np.zeros(layout.num_bytes, np.uint8)
    for name, array in arrays.items():
        if name == "codes":
            padded = np.pad(array, ((0, 0), (0, layout.width - array.shape[1])))
            numbers = split_halves(padded, layout) if layout.is_narrow else padded
        elif name == "order":
            numbers = array.astype(np.int32)
        else:
            kind = np.float32 if name in _FLOATS else array.dtype
            by_row = array.astype(kind).reshape(layout.rows, -1)
            count = layout.count(name) // layout.rows
            numbers = np.pad(by_row, ((0, 0), (0, count - by_row.shape[1]))).T
        raw = np.ascontiguousarray(numbers).reshape(-1).view(np.uint8)
        begin = layout.begin(name)
        out[begin : begin + raw.size] = raw
    return out
