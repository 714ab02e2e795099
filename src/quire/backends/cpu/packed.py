"""Finds a model's weights in a packed file, which is memory-mapped and used in place.

A rank that has some columns of a weight copies them out of the file's strips. All ranks of a host
read one file, and none of them reads or keeps more than its part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from quire.backends.base import Dtype
from quire.backends.cpu.library import Library
from quire.backends.cpu.lowering.native_op import StoredWeight
from quire.backends.cpu.packing import allocate
from quire.backends.cpu.stored_weights import (
    Place,
    has_scales,
    layout,
    num_bytes,
    stored_numbers,
)
from quire.errors import CheckpointError
from quire.program import Param
from quire.program.values import Share
from quire.units import ceil_div
from quire.weights.packed_file import PackedFile

_STRIP = 32
"""Columns of a strip; of a gate and up, a strip has half as many of both."""
_SCALES = (4, 4)
"""Bytes of what each column of an integer format has after all strips: a scale and an offset."""

Spans = list[tuple[int, int]]
"""The first and the number of bytes, or strips, that follow each other."""


def find_packed(
    library: Library, file: PackedFile, weights: Sequence[StoredWeight], dtype: Dtype
) -> Mapping[StoredWeight, Place]:
    """Read the weights into memory and return them; they are views of the file where it is used in
    place. Raises CheckpointError unless the file has all of them in the layout that this library
    reads, and the parts begin and end at strips."""
    found = {weight: _find(library, file, weight, dtype) for weight in weights}
    parts = {
        weight: _spans(library, file, weight, weight.param.share, found[weight].data.nbytes, dtype)
        for weight in weights
        if weight.param.share is not None
    }
    file.populate([str(weight) for weight in weights if weight not in parts])
    places = allocate({weight: sum(count for _, count in spans) for weight, spans in parts.items()})
    for weight, spans in parts.items():
        end = 0
        for first, count in spans:
            places[weight][end : end + count] = found[weight].data[first : first + count]
            end += count
        file.release(str(weight))
    copies = {weight: Place(place, found[weight].numbers) for weight, place in places.items()}
    return {**found, **copies}


def _find(library: Library, file: PackedFile, weight: StoredWeight, dtype: Dtype) -> Place:
    """A weight, whole also where a rank has only a part of it."""
    whole, tensors = weight, weight.tensors
    if weight.param.share is not None:
        whole = replace(weight, param=_whole(weight.param, weight.param.share))
        tensors = _tensors_of_whole(file, weight)
    numbers = stored_numbers(whole, (), dtype)
    if weight.kind == "table":  # a float32 model may hold a bfloat16 table
        narrow = stored_numbers(whole, ("BF16",), dtype)
        if file.num_bytes(str(weight)) == num_bytes(library, whole, dtype, narrow):
            numbers = narrow
    text = layout(library, whole, dtype, numbers)
    size = num_bytes(library, whole, dtype, numbers)
    return Place(file.section(str(weight), tensors, (text,), size), numbers)


def _whole(param: Param, share: Share) -> Param:
    """The weight of which a rank has this part; the names of its tensors are those of the part."""
    before = max(0, len(param.shape) - 2)  # of experts
    shape = (*param.shape[:before], share.total, *param.shape[before + 1 :])
    return replace(param, shape=shape, share=None)


def _tensors_of_whole(file: PackedFile, weight: StoredWeight) -> tuple[str, ...]:
    """Names of the file's tensors of a whole weight; empty unless it has the tensors of the
    part."""
    names = file.tensors(str(weight))
    own = {part.name for part in weight.param.parts}
    is_there = all(any(name.startswith(one) for name in names) for one in own)
    return names if is_there else weight.tensors


def _spans(
    library: Library,
    file: PackedFile,
    weight: StoredWeight,
    share: Share,
    whole_bytes: int,
    dtype: Dtype,
) -> Spans:
    """Places of the bytes of a rank's part among those of the whole weight, in the part's order."""
    if weight.kind != "matrix":
        size = whole_bytes // share.total
        return [(first * size, count * size) for first, count in share.runs]
    num_strips, strips = _strips(file, weight, share)
    sizes = [_strip_bytes(library, weight, dtype)]
    if has_scales(weight.param):
        sizes += [_STRIP * size for size in _SCALES]
    num_experts = prod(weight.param.shape[:-2])
    of_one, begin = Spans(), 0
    for size in sizes:
        of_one += [(begin + first * size, count * size) for first, count in strips]
        begin += num_strips * size
    of_expert = whole_bytes // num_experts
    if of_expert > begin:  # the order of the rows of K
        of_one.append((begin, of_expert - begin))
    return [(e * of_expert + first, count) for e in range(num_experts) for first, count in of_one]


def _strip_bytes(library: Library, weight: StoredWeight, dtype: Dtype) -> int:
    """The bytes of a strip of a matrix, without what follows all strips."""
    param = weight.param
    one, two = (
        StoredWeight("matrix", replace(param, shape=(count * _STRIP, param.shape[-1])))
        for count in (1, 2)
    )
    size = num_bytes(library, two, dtype) - num_bytes(library, one, dtype)
    return size - (_STRIP * sum(_SCALES) if has_scales(param) else 0)


def _strips(file: PackedFile, weight: StoredWeight, share: Share) -> tuple[int, Spans]:
    """The number of strips of a matrix, and those that a rank has."""
    total, runs, width = share.total, share.runs, _STRIP
    if weight.glu:  # the columns of up are in the strips of those of the gate
        total, runs, width = total // 2, runs[: len(runs) // 2], _STRIP // 2
    for index, (first, count) in enumerate(runs):
        is_end = index == len(runs) - 1 and first + count == total
        if first % width or (count % width and not is_end):
            raise CheckpointError(
                f"{file.path}: packed weights can be divided among ranks at multiples of {width} "
                f"columns, and a rank has the columns {share} of {weight}; use another "
                "tensor_parallel_size, or load the checkpoint that the file was made from"
            )
    strips = [(first // width, ceil_div(count, width)) for first, count in runs]
    return ceil_div(total, width), strips
