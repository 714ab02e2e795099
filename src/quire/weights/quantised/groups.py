"""`Groups`: a matrix of a quantised checkpoint as codes, with the scales and zeros of each group.

`unpack` converts the layouts of checkpoints to this form, from which a backend packs weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError
from quire.program.values import GroupedFormat
from quire.weights.quantised.float_tables import E4M3, FP4, NF4

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Order = NDArray[np.int32]

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
"""Integer value of each code, by table. Source of iq4 and e2m1: ggml-common.h, kvalues_iq4nl and
kvalues_mxfp4."""

LEVELS: dict[str, NDArray[Any]] = {**TABLES, "e4m3": E4M3, "nf4": NF4, "fp4": FP4}
"""Value of each code, by table: the integer tables and the float tables."""


@dataclass(frozen=True, slots=True)
class Groups:
    """A matrix [N, K] as codes. Invariant: the arrays have the shapes and ranges of the format."""

    format: GroupedFormat
    codes: Bytes
    """[N, K]."""
    scales: Floats | Bytes
    """[N, groups]; bytes of E4M3 if the format's scale is "e4m3"."""
    zeros: Bytes | None = None
    minima: Floats | None = None
    divisors: Floats | None = None
    """[N]: numbers by which E4M3 scales are divided; None for other scales."""
    order: Order | None = None
    """[K]: the column of the matrix that each column of the codes holds."""

    def __post_init__(self) -> None:
        rows, depth = self.codes.shape
        format = self.format
        per_group = (rows, format.num_groups(depth))
        limits = len(LEVELS[format.table])
        wanted: list[tuple[str, NDArray[Any] | None, bool, tuple[int, ...]]] = [
            (f"scales {list(self.scales.shape)}", self.scales, True, per_group),
            ("zeros", self.zeros, format.has_zeros, per_group),
            ("minima", self.minima, format.has_minima, per_group),
            ("divisors", self.divisors, format.scale == "e4m3", (rows,)),
            ("order", self.order, format.has_order, (depth,)),
        ]
        wrong = [
            what
            for what, found, is_wanted, shape in wanted
            if (found is not None) != is_wanted or (found is not None and found.shape != shape)
        ]
        if limits < 256 and bool((self.codes >= limits).any()):
            wrong.append("codes")
        if not wrong and self.order is not None and not _is_permutation(self.order):
            wrong.append("order")
        if wrong:
            raise CheckpointError(
                f"a matrix {[rows, depth]} in {format} must have {list(per_group)} groups: "
                f"{', '.join(wrong)} do not fit"
            )

    def to_float32(self) -> Floats:
        """Return the weights. Each quotient, product and sum is rounded to float32."""
        depth = self.codes.shape[1]

        def spread(of_groups: NDArray[Any]) -> NDArray[Any]:
            return np.repeat(of_groups, self.format.group, axis=1)[:, :depth]

        levels = LEVELS[self.format.table][self.codes]
        if self.zeros is not None:
            levels = levels - spread(self.zeros.astype(np.int32))
        values: Floats = levels.astype(np.float32) * spread(self.group_scales())
        if self.minima is not None:
            values = values + spread(self._held(self.minima))
        if self.order is None:
            return values
        placed = np.empty_like(values)
        placed[:, self.order] = values
        return placed

    def taken(self, rows: NDArray[np.intp]) -> Groups:
        """Return the matrix that consists of these rows."""
        return replace(
            self,
            codes=self.codes[rows],
            scales=self.scales[rows],
            zeros=None if self.zeros is None else self.zeros[rows],
            minima=None if self.minima is None else self.minima[rows],
            divisors=None if self.divisors is None else self.divisors[rows],
        )

    def group_scales(self) -> Floats:
        """Return the scales as float32 [N, groups], rounded to the dtype that stores them."""
        if self.divisors is not None:
            found: Floats = E4M3[self.scales.view(np.uint8)] / self.divisors[:, None]
            return found
        return self._held(self.scales)

    def to_bytes(self) -> Bytes:
        """Return the bytes of a `quire_part` of dtype GROUPED: codes, scales, zeros, minima,
        divisors and order, in this sequence. Raises CheckpointError for nested scales, which exist
        only in blocks.
        """
        if self.format.scale == "nested":
            raise CheckpointError(f"{self.format} is packed from the blocks of a GGUF file")
        dtype = self._dtype()
        parts = [self.codes.reshape(-1), _bytes_of(self.scales, dtype)]
        if self.zeros is not None:
            parts.append(self.zeros.reshape(-1))
        if self.minima is not None:
            parts.append(_bytes_of(self.minima, dtype))
        if self.divisors is not None:
            parts.append(_bytes_of(self.divisors, np.dtype(np.float32)))
        if self.order is not None:
            parts.append(_bytes_of(self.order, np.dtype(np.int32)))
        return np.concatenate(parts)

    @classmethod
    def from_bytes(cls, data: Bytes, shape: tuple[int, ...], format: GroupedFormat) -> Groups:
        """Return the matrix of which `data` is `to_bytes()`."""
        rows, depth = shape
        per_group = (rows, format.num_groups(depth))
        at = rows * depth

        def taken(dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
            nonlocal at
            begin, at = at, at + dtype.itemsize * int(np.prod(shape))
            return np.frombuffer(data[begin:at].tobytes(), dtype).reshape(shape)

        def numbers() -> NDArray[Any]:
            found = taken(_dtype_of(format), per_group)
            return found if format.scale == "e4m3" else found.astype(np.float32)

        return cls(
            format,
            data[:at].reshape(shape),
            numbers(),
            taken(np.dtype(np.uint8), per_group) if format.has_zeros else None,
            numbers() if format.has_minima else None,
            taken(np.dtype(np.float32), (rows,)) if format.scale == "e4m3" else None,
            taken(np.dtype(np.int32), (depth,)) if format.has_order else None,
        )

    def _dtype(self) -> np.dtype[Any]:
        return _dtype_of(self.format)

    def _held(self, numbers: NDArray[Any]) -> Floats:
        return numbers.astype(self._dtype()).astype(np.float32)


def _dtype_of(format: GroupedFormat) -> np.dtype[Any]:
    """NumPy dtype in which scales and minima are stored."""
    kinds = {"f16": np.float16, "e4m3": np.uint8}
    return np.dtype(kinds.get(format.scale, np.float32))


def _bytes_of(numbers: NDArray[Any], dtype: np.dtype[Any]) -> Bytes:
    found: Bytes = np.ascontiguousarray(numbers, dtype).reshape(-1).view(np.uint8)
    return found


def _is_permutation(order: Order) -> bool:
    return bool(np.array_equal(np.sort(order), np.arange(order.size)))
