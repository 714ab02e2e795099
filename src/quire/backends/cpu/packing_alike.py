"""Packs random weights quickly: one weight of each kind is packed, and the others are copies of it.

Rounding all numbers of a large model takes minutes, which random numbers are not worth. Each copy
has memory of its own, so that a step reads as many bytes as with a real checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from quire.backends.base import Dtype
from quire.backends.cpu.library import Library
from quire.backends.cpu.lowering.native_op import StoredWeight
from quire.backends.cpu.packing import Packer, allocate
from quire.backends.cpu.stored_weights import Bytes, Place, layout, num_bytes
from quire.units import MiB
from quire.weights.packed_file import PackedWriter

_EXPERTS = 2
"""Number of experts packed per layer if each expert has its own tensors. With two, neighbouring
experts differ."""
_PIECE_BYTES = 16 * MiB
"""Bytes that a thread copies at a time."""


class AlikePacker:
    """Packs weights of a store with random numbers.

    Only matrices that are rounded or held in groups are copies. Plain numbers, such as routers, are
    packed one by one, which takes no longer than a copy.
    """

    def __init__(self, packer: Packer, library: Library, dtype: Dtype, num_threads: int) -> None:
        self._packer = packer
        self._library = library
        self._dtype = dtype
        self._num_threads = num_threads

    @property
    def not_finite(self) -> list[str]:
        """Tensors with a NaN or an infinity, as in `Packer`."""
        return self._packer.not_finite

    def into_memory(self, weights: Sequence[StoredWeight]) -> Mapping[StoredWeight, Place]:
        """Packs all weights into memory. Raises CheckpointError for a shape that the format does
        not allow."""
        samples = _samples(weights)
        own = self._packer.into_memory([weight for weight in weights if weight not in samples])
        copies = allocate({w: num_bytes(self._library, w, self._dtype) for w in samples})
        packed = self._pack_samples(samples)
        with ThreadPoolExecutor(self._num_threads) as threads:
            for weight, sample in samples.items():
                _repeat(packed[sample].data, copies[weight], threads)
        return {**own, **{w: Place(copy, packed[samples[w]].numbers) for w, copy in copies.items()}}

    def into_file(self, weights: Iterable[StoredWeight], writer: PackedWriter) -> None:
        """Packs the weights one by one into a file. Besides the samples, at most one weight is in
        memory at a time."""
        weights = tuple(weights)
        samples = _samples(weights)
        packed = self._pack_samples(samples)
        for weight in weights:
            if weight not in samples:
                self._packer.into_file([weight], writer)
                continue
            size = num_bytes(self._library, weight, self._dtype)
            text = layout(self._library, weight, self._dtype)
            data = np.resize(packed[samples[weight]].data, size)
            writer.add(str(weight), weight.tensors, text, data)

    def _pack_samples(
        self, samples: Mapping[StoredWeight, StoredWeight]
    ) -> Mapping[StoredWeight, Place]:
        return self._packer.into_memory(list(dict.fromkeys(samples.values())))


def _samples(weights: Iterable[StoredWeight]) -> dict[StoredWeight, StoredWeight]:
    """For each weight that is a copy, the weight that is packed instead."""
    first: dict[object, StoredWeight] = {}
    found = {}
    for weight in weights:
        if weight.kind == "matrix" and weight.param.format != "dense":
            found[weight] = first.setdefault(_kind(weight), _few_experts(weight))
    return found


def _kind(weight: StoredWeight) -> object:
    """A key that is equal for weights that differ only in names."""
    parts = tuple(replace(part, name="") for part in weight.param.parts)
    return replace(weight, param=replace(weight.param, name="", parts=parts))


def _few_experts(weight: StoredWeight) -> StoredWeight:
    """The weight with only its first experts, if each expert has its own tensors."""
    param = weight.param
    if len(param.shape) < 3 or len(param.parts[0].shape) > 2:
        return weight
    experts, *shape = param.shape
    few = min(experts, _EXPERTS)
    parts = param.parts[: few * len(param.parts) // experts]
    return replace(weight, param=replace(param, shape=(few, *shape), parts=parts))


def _repeat(data: Bytes, place: Bytes, threads: ThreadPoolExecutor) -> None:
    """Fills `place` with repetitions of `data`."""

    def fill(begin: int) -> None:
        end = min(begin + _PIECE_BYTES, place.size)
        while begin < end:
            offset = begin % data.size
            count = min(end - begin, data.size - offset)
            place[begin : begin + count] = data[offset : offset + count]
            begin += count

    for _ in threads.map(fill, range(0, place.size, _PIECE_BYTES)):
        pass
