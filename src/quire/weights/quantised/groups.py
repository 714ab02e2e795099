"""`Groups`: a matrix of a quantised checkpoint as codes, with what each group of them has.

The common form between the layouts of checkpoints (`unpack`) and the one that a backend packs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError
from quire.program.values import GroupedFormat

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

TABLES: dict[str, NDArray[np.int32]] = {
    "u4": np.arange(16, dtype=np.int32),
    "s4": np.arange(16, dtype=np.int32) - 8,
    "iq4": np.array(
        [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int32
    ),
    "e2m1": np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int32),
    "s8": np.arange(256, dtype=np.int32) - 128,
    "s6": np.arange(64, dtype=np.int32) - 32,
    "u5": np.arange(32, dtype=np.int32),
    "s5": np.arange(32, dtype=np.int32) - 16,
}
"""The number of each code. Source of iq4 and e2m1: ggml-common.h, kvalues_iq4nl, kvalues_mxfp4."""


@dataclass(frozen=True, slots=True)
class Groups:
    """A matrix [N, K] as codes. Invariant: the arrays have the shapes and ranges of the format."""

    format: GroupedFormat
    codes: Bytes
    """[N, K]."""
    scales: Floats
    """[N, groups]."""
    zeros: Bytes | None = None
    minima: Floats | None = None

    def __post_init__(self) -> None:
        rows, depth = self.codes.shape
        per_group = (rows, self.format.num_groups(depth))
        limits = len(TABLES[self.format.table])
        problems = [
            (self.scales.shape != per_group, f"scales are {list(self.scales.shape)}"),
            ((self.zeros is not None) != self.format.has_zeros, "zeros"),
            ((self.minima is not None) != self.format.has_minima, "minima"),
            (self.zeros is not None and self.zeros.shape != per_group, "zeros"),
            (self.minima is not None and self.minima.shape != per_group, "minima"),
            (bool((self.codes >= limits).any()) if limits < 256 else False, "codes"),
        ]
        wrong = [what for is_wrong, what in problems if is_wrong]
        if wrong:
            raise CheckpointError(
                f"a matrix {[rows, depth]} in {self.format} needs {list(per_group)} groups: "
                f"{', '.join(wrong)} do not fit"
            )

    def to_float32(self) -> Floats:
        """The weights: each product and each sum rounded to float32."""
        depth = self.codes.shape[1]

        def spread(of_groups: NDArray[Any]) -> NDArray[Any]:
            return np.repeat(of_groups, self.format.group, axis=1)[:, :depth]

        whole = TABLES[self.format.table][self.codes]
        if self.zeros is not None:
            whole = whole - spread(self.zeros.astype(np.int32))
        values: Floats = whole.astype(np.float32) * spread(self._held(self.scales))
        return values if self.minima is None else values + spread(self._held(self.minima))

    def to_bytes(self) -> Bytes:
        """What a `quire_part` of dtype GROUPED is: codes, scales, zeros, minima.

        Raises CheckpointError for nested scales, which come in blocks alone.
        """
        if self.format.scale == "nested":
            raise CheckpointError(f"{self.format} is packed from the blocks of a GGUF file")
        dtype = self._dtype()
        parts = [self.codes.reshape(-1), self.scales.astype(dtype).reshape(-1).view(np.uint8)]
        if self.zeros is not None:
            parts.append(self.zeros.reshape(-1))
        if self.minima is not None:
            parts.append(self.minima.astype(dtype).reshape(-1).view(np.uint8))
        return np.concatenate(parts)

    @classmethod
    def from_bytes(cls, data: Bytes, shape: tuple[int, ...], format: GroupedFormat) -> Groups:
        """The inverse of `to_bytes`."""
        rows, depth = shape
        per_group = (rows, format.num_groups(depth))
        item = 2 if format.scale == "f16" else 4
        dtype = np.float16 if format.scale == "f16" else np.float32
        count, at = per_group[0] * per_group[1], rows * depth

        def floats(begin: int) -> Floats:
            found = np.frombuffer(data[begin : begin + item * count].tobytes(), dtype)
            return found.astype(np.float32).reshape(per_group)

        codes, scales = data[:at].reshape(shape), floats(at)
        at += item * count
        zeros = data[at : at + count].reshape(per_group) if format.has_zeros else None
        at += count * format.has_zeros
        return cls(format, codes, scales, zeros, floats(at) if format.has_minima else None)

    def _dtype(self) -> type[np.floating]:
        return np.float16 if self.format.scale == "f16" else np.float32

    def _held(self, numbers: Floats) -> Floats:
        return numbers.astype(self._dtype()).astype(np.float32)
