"""Packs a checkpoint's weights: all of them into memory for a model, or one by one into a file.

Called when a model is compiled, and by `quire quantize`. A checkpoint's pages leave the resident
set as soon as they are packed, so that loading needs little more memory than the packed weights.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import Dtype
from quire.backends.cpu.library import Library
from quire.backends.cpu.lowering.native_op import StoredWeight
from quire.backends.cpu.stored_weights import (
    Bytes,
    Numbers,
    Place,
    layout,
    matrix_spec,
    num_bytes,
    stored_numbers,
    table_spec,
)
from quire.errors import CheckpointError
from quire.program import Tensor
from quire.program.values import GroupedFormat, WeightFormat
from quire.units import MiB, ceil_div
from quire.weights import HostTensor, WeightStore
from quire.weights.packed_file import PackedWriter
from quire.weights.quantised.groups import Groups

_HUGE_PAGE = 2 * MiB
_ALIGNMENT = 64
_MAX_COPIED_BYTES = 256 * MiB
"""Bytes of copied tensors that are collected before they are packed. A store that maps its files
makes no copies."""


class Packer:
    """Packs weights of one store with the threads of one pool."""

    def __init__(self, library: Library, pool: Any, store: WeightStore, dtype: Dtype) -> None:
        self._library = library
        self._pool = pool
        self._store = store
        self._dtype = dtype
        self.not_finite: list[str] = []
        """Names of the tensors packed so far that hold a NaN or an infinity."""

    def into_memory(self, weights: Sequence[StoredWeight]) -> Mapping[StoredWeight, Place]:
        """Pack all weights into huge pages, in one native call if the store maps its files. Raises
        CheckpointError for a tensor with a wrong shape or format.
        """
        places: dict[StoredWeight, Place] = {}
        tensors: dict[StoredWeight, list[HostTensor]] = {}
        num_copied = 0
        for weight in weights:
            tensors[weight] = self._tensors(weight)
            num_copied += sum(t.data.nbytes for t in tensors[weight] if not t.is_mapped)
            if num_copied >= _MAX_COPIED_BYTES:
                places |= self._packed(tensors)
                tensors, num_copied = {}, 0
        return places | self._packed(tensors)

    def _packed(
        self, tensors: Mapping[StoredWeight, list[HostTensor]]
    ) -> dict[StoredWeight, Place]:
        numbers = {
            weight: stored_numbers(weight, [one.dtype for one in sources], self._dtype)
            for weight, sources in tensors.items()
        }
        room = allocate(
            {w: num_bytes(self._library, w, self._dtype, kept) for w, kept in numbers.items()}
        )
        places = {weight: Place(room[weight], numbers[weight]) for weight in tensors}
        self._pack(tensors, places)
        return places

    def into_file(self, weights: Iterable[StoredWeight], writer: PackedWriter) -> None:
        """Pack the weights one by one into a file; one weight is in memory at a time."""
        for weight in weights:
            tensors = self._tensors(weight)
            numbers = self._numbers_in_file(weight, tensors)
            size = num_bytes(self._library, weight, self._dtype, numbers)
            place = Place(allocate({weight: size})[weight], numbers)
            num_before = len(self.not_finite)
            self._pack({weight: tensors}, {weight: place})
            text = layout(self._library, weight, self._dtype, numbers)
            bad_names = tuple(self.not_finite[num_before:])
            writer.add(str(weight), weight.tensors, text, place.data, bad_names)

    def _numbers_in_file(self, weight: StoredWeight, tensors: Sequence[HostTensor]) -> Numbers:
        """The type of a weight's numbers in a file; matrices have that of the model."""
        sources = [t.dtype for t in tensors] if weight.kind == "table" else []
        return stored_numbers(weight, sources, self._dtype)

    def _pack(
        self, tensors: Mapping[StoredWeight, list[HostTensor]], places: Mapping[StoredWeight, Place]
    ) -> None:
        ffi = self._library.ffi
        alive: list[Any] = []
        records = []
        checked: list[tuple[list[HostTensor], Any]] = []
        for weight, sources in tensors.items():
            place, numbers = places[weight]
            if weight.kind == "vector":
                self._fill_vector(weight, place, sources)
                continue
            parts = self._parts(weight, sources)
            matrix = table = ffi.NULL
            if weight.kind == "matrix":
                matrix = matrix_spec(self._library, weight, self._dtype, numbers)
            else:
                table = table_spec(self._library, weight, numbers)
            out = ffi.cast("void *", place.ctypes.data)
            is_bad = ffi.new("uint8_t[]", len(parts))
            checked.append((_source_of_pieces(weight, sources), is_bad))
            alive += [parts, matrix, table]
            records.append((matrix, table, parts, len(parts), out, is_bad))
        packings = ffi.new("quire_packing[]", records)
        if self._library.lib.quire_pack(self._pool, packings, len(records)) != 0:
            raise self._library.error("the weights cannot be packed")
        for sources, is_bad in checked:
            bad = zip(sources, is_bad, strict=True)
            names = (tensor.name for tensor, one_is_bad in bad if one_is_bad)
            self.not_finite += dict.fromkeys(names)
        for sources in tensors.values():
            for tensor in sources:
                self._store.release(tensor.name)

    def _fill_vector(
        self, weight: StoredWeight, place: Bytes, tensors: Sequence[HostTensor]
    ) -> None:
        parts = [
            tensor.to_float32().reshape(-1)[piece.first : piece.first + piece.size]
            for part, tensor in zip(weight.param.parts, tensors, strict=True)
            for piece in _pieces(part, tensor)
        ]
        place.view(np.float32)[:] = np.concatenate(parts)
        bad = zip(_source_of_pieces(weight, tensors), parts, strict=True)
        names = (tensor.name for tensor, part in bad if not np.isfinite(part).all())
        self.not_finite += dict.fromkeys(names)

    def _tensors(self, weight: StoredWeight) -> list[HostTensor]:
        tensors = []
        known: dict[tuple[str, bool], HostTensor] = {}  # the heads of a matrix are parts of it
        for part in weight.param.parts:
            key = part.name, part.transposed
            tensor = known[key] = known.get(key) or self._tensor(weight, part)
            if tensor.shape != part.shape:
                raise CheckpointError(
                    f"{tensor.file}: tensor {part.name!r} must have shape {list(part.shape)}, "
                    f"not {list(tensor.shape)}"
                )
            wanted = weight.param.format
            if not _fits(tensor, wanted):
                raise CheckpointError(
                    f"{tensor.file}: tensor {part.name!r} is stored as "
                    f"{tensor.format or 'numbers'}, but quantization_config in config.json "
                    f"requires {wanted}"
                )
            tensors.append(_own_part(tensor, part))
        return tensors

    def _tensor(self, weight: StoredWeight, part: Tensor) -> HostTensor:
        """Return numbers, or what is stored. Where some rows of a quantised matrix are wanted in
        another format, as those of a head, they are numbers."""
        is_number = weight.kind == "vector" or part.transposed
        found = self._store.get(part.name) if is_number else self._store.stored(part.name)
        is_held = isinstance(weight.param.format, GroupedFormat)
        if found.dtype != "GROUPED" or part.rows is None or is_held:
            return found
        data = found.to_float32().reshape(-1).view(np.uint8)
        return HostTensor(found.name, "F32", found.shape, data, found.file)

    def _parts(self, weight: StoredWeight, tensors: list[HostTensor]) -> Any:
        """Return quire_part records. They point into the tensors, which the caller keeps alive. A
        tensor with a matrix for each expert has a record for each expert."""
        ffi = self._library.ffi
        pairs = zip(weight.param.parts, tensors, strict=True)
        places = [
            (tensor, part, piece) for part, tensor in pairs for piece in _pieces(part, tensor)
        ]
        parts = ffi.new("quire_part[]", len(places))
        for record, (tensor, part, piece) in zip(parts, places, strict=True):
            offset = piece.first * tensor.data.nbytes // prod(tensor.shape)
            record.data = ffi.cast("void *", tensor.data.ctypes.data + offset)
            record.rows = piece.rows
            record.dtype = _source_dtype(self._library, tensor)
            record.transposed = part.transposed
            record.mapped = tensor.is_mapped
        return parts


def _fits(tensor: HostTensor, wanted: WeightFormat | GroupedFormat) -> bool:
    """Whether a tensor can be packed into a weight of this format. Groups and blocks fit a weight
    of the same grouped format; blocks also fit other formats, because they convert to numbers."""
    if not isinstance(wanted, GroupedFormat):
        return tensor.dtype != "GROUPED"
    if tensor.format is None:
        return False
    return tensor.format.with_activations_of(wanted) == wanted


def _source_dtype(library: Library, tensor: HostTensor) -> int:
    """Return the quire_dtype of a part."""
    if tensor.block_type is not None:
        return library.code("QUIRE_GGUF") + tensor.block_type.code
    return library.code(f"QUIRE_{tensor.dtype}")


class _Piece(NamedTuple):
    """Consecutive numbers of a tensor that form rows of the packed matrix."""

    first: int
    rows: int
    size: int


def _pieces(part: Tensor, tensor: HostTensor) -> tuple[_Piece, ...]:
    """Return a tensor's ranges of rows, or those of each expert's matrix."""
    is_copied = _is_copied(part, tensor)
    whole = replace(part, rows=None, columns=None)
    shape = part.slot_shape if is_copied else whole.slot_shape
    *experts, rows, width = shape if len(shape) > 1 else (*shape, 1)
    runs = ((0, rows),) if is_copied or part.rows is None else part.rows
    return tuple(
        _Piece((expert * rows + first) * width, count, count * width)
        for expert in range(prod(experts))
        for first, count in runs
    )


def _is_copied(part: Tensor, tensor: HostTensor) -> bool:
    """Whether the part must be copied, because its numbers are not ranges of the tensor's bytes."""
    is_divided = part.transposed or tensor.dtype == "GROUPED"
    return part.columns is not None or (part.rows is not None and is_divided)


def _own_part(tensor: HostTensor, part: Tensor) -> HostTensor:
    """The tensor, or a copy of the rows and columns that the slot has."""
    if not _is_copied(part, tensor):
        return tensor
    if tensor.format is not None and part.rows is not None:
        groups = Groups.from_bytes(tensor.data, tensor.shape, tensor.format)
        groups = groups.taken(_indices(part.rows))
        return replace(tensor, shape=groups.codes.shape, data=groups.to_bytes(), is_mapped=False)
    item = tensor.data.nbytes // prod(tensor.shape)
    numbers = tensor.data.reshape(*tensor.shape, item)
    if part.rows is not None:
        numbers = numbers[..., _indices(part.rows), :, :]
    if part.columns is not None:
        numbers = numbers[..., _indices(part.columns), :]
    numbers = np.ascontiguousarray(numbers)
    return replace(tensor, shape=numbers.shape[:-1], data=numbers.reshape(-1), is_mapped=False)


def _indices(runs: Sequence[tuple[int, int]]) -> NDArray[np.intp]:
    return np.concatenate([np.arange(first, first + count) for first, count in runs])


def _source_of_pieces(weight: StoredWeight, tensors: Sequence[HostTensor]) -> list[HostTensor]:
    """Return the tensor of each piece of each part."""
    pairs = zip(weight.param.parts, tensors, strict=True)
    return [tensor for part, tensor in pairs for _ in _pieces(part, tensor)]


def allocate(sizes: Mapping[StoredWeight, int]) -> dict[StoredWeight, Bytes]:
    """Return memory for each weight in one mapping, which lives as long as any of them."""
    starts, end = {}, 0
    for weight, size in sizes.items():
        starts[weight] = end
        end += ceil_div(size, _ALIGNMENT) * _ALIGNMENT
    memory = huge_pages(end)
    return {weight: memory[starts[weight] :][:size] for weight, size in sizes.items()}


def huge_pages(num_bytes: int) -> Bytes:
    """Return new memory that is aligned to a huge page and that the kernel may back with huge
    pages."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory cannot have huge pages
    mapping = mmap.mmap(-1, num_bytes + _HUGE_PAGE, flags=private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(mapping, np.uint8)
    first = -memory.ctypes.data % _HUGE_PAGE
    return memory[first : first + num_bytes]
