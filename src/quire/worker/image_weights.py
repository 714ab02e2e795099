"""`VisionStore`: the tensors of an image encoder in the form of its programs.

Kernels of convolutions are matrices, the class token is added to its row of the positions, and
tables of given rows, which the checkpoint does not have, are zeros.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError
from quire.models.media.model import VisionModel
from quire.models.media.tower import PATCHES, PROJECTOR, VISION
from quire.program import Program, Tensor
from quire.weights import HostTensor, WeightStore


class VisionStore(WeightStore):
    """The tensors of one program. The checkpoint stays open as long as this store."""

    def __init__(self, store: WeightStore, vision: VisionModel, program: Program) -> None:
        """Raises CheckpointError if the checkpoint lacks a tensor, or has it in another shape."""
        self._store, self._vision = store, vision
        self._wanted = {part.name: part for param in program.params() for part in param.parts}
        self._known = set(store.names())
        for name, part in self._wanted.items():
            self._check(name, part)

    def names(self) -> Iterable[str]:
        return self._wanted.keys()

    def get(self, name: str) -> HostTensor:
        part = self._wanted.get(name)
        if part is None:
            raise CheckpointError(f"the program has no tensor {name!r}")
        if name.endswith(PATCHES):
            return _host(name, np.zeros(part.shape, np.float32))
        found = self._store.get(self._stored(name))
        class_row = self._vision.class_row
        if class_row is not None and name == VISION + class_row.positions:
            table = found.to_float32().reshape(part.shape).copy()
            table[0] += self._values(VISION + class_row.token)
            if class_row.patch_bias:  # a row of zeros becomes the bias of the patches
                table[0] -= self._values(VISION + class_row.patch_bias)
            return _host(name, table)
        return replace(found, name=name, shape=part.shape)

    def close(self) -> None:
        self._store.close()

    def check(self) -> None:
        self._store.check()

    def table(self, tensor: Tensor) -> NDArray[np.float32]:
        """A tensor that no program has, or the rows of it that are named, in float32."""
        self._check(tensor.name, tensor)
        found = self._store.get(self._stored(tensor.name)).to_float32().reshape(tensor.shape)
        if tensor.rows is None:
            return found
        runs = [found[..., first : first + count, :] for first, count in tensor.rows]
        return np.concatenate(runs, axis=-2)

    def _values(self, name: str) -> NDArray[np.float32]:
        return self._store.get(self._stored(name)).to_float32().reshape(-1)

    def _stored(self, name: str) -> str:
        """The tensor's name in the checkpoint."""
        vision = self._vision
        root, prefixes = (
            (VISION, vision.prefixes)
            if name.startswith(VISION)
            else (PROJECTOR, vision.projector_prefixes)
        )
        rest = name.removeprefix(root)
        found = next((one + rest for one in prefixes if one + rest in self._known), None)
        if found is None:
            raise CheckpointError(f"{self._store.source} has no tensor {prefixes[0] + rest!r}")
        return found

    def _check(self, name: str, part: Tensor) -> None:
        if name.endswith(PATCHES):
            return
        stored = self._stored(name)
        shape = self._store.shape(stored)
        # A kernel of a convolution over time is [rows, channels, taps].
        is_kernel = len(shape) > 3 or (len(shape) == 3 and shape[0] == part.shape[0])
        if prod(shape) != prod(part.shape) or not (is_kernel or _bare(shape) == part.shape):
            raise CheckpointError(
                f"{self._store.source}: tensor {stored!r} has shape {list(shape)}, but config.json "
                f"requires {list(part.shape)}"
            )


def _bare(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without leading ones; that of a number is [1]."""
    return shape[1:] if len(shape) == 3 and shape[0] == 1 else shape or (1,)


def _host(name: str, values: NDArray[np.float32]) -> HostTensor:
    data = np.frombuffer(np.ascontiguousarray(values, np.float32).tobytes(), np.uint8)
    return HostTensor(name, "F32", values.shape, data, file="the image encoder")
