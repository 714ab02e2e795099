"""`CodedLayout`: where the arrays of a matrix of codes are in its bytes on the device.

A weight is level(code) * scale + minimum. Nested scales and minima are signed bytes (`subs`,
`min_subs`) times a float32 that 256 columns share. Codes have 8 bits, or 4. Of 4-bit codes, the
two halves of `2 * step_k` neighbours share bytes: the low bits are those of the first half. Rows
are padded to whole units of 64 columns. The other arrays are [groups, N], so that neighbouring
programs read neighbouring numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.memory import Buffer, aligned
from quire.errors import BackendError
from quire.program import Param
from quire.program.values import BITS, NEST, GroupedFormat
from quire.weights.quantised.groups import TABLES

Kind = Literal["i8", "e4m3", "u4", "table", "steps"]
"""Meaning of a code: a signed byte; 8-bit floats; 0..15 minus the group's zero; one of 16 bytes of
a table minus the zero; code * step - offset, with both of the group."""
KINDS: tuple[Kind, ...] = ("i8", "e4m3", "u4", "table", "steps")
UNIT = 64
"""Columns that rows are padded to."""
OWN_GROUP = 32
"""Columns of a group of the project's own 4-bit format."""
_TYPES = {
    "codes": 1, "zeros": 1, "steps": 1, "offsets": 1, "subs": 1, "min_subs": 1, "scales": 4,
    "minima": 4, "order": 4,
}  # fmt: skip
"""Arrays, and the bytes of a number."""


@dataclass(frozen=True, slots=True)
class CodedLayout:
    """The arrays of one matrix [N, K]; of experts, N counts the rows of all of them."""

    kind: Kind
    rows: int
    depth: int
    group: int
    """Columns of a group."""
    is_by_row: bool = False
    """Whether there is one scale for each row; otherwise one for each group."""
    has_zeros: bool = False
    has_minima: bool = False
    has_order: bool = False
    is_nested: bool = False
    table: str = ""
    """The name of the table of 4-bit codes."""

    @property
    def width(self) -> int:
        """Columns with padding."""
        return -(-self.depth // UNIT) * UNIT

    @property
    def step_k(self) -> int:
        """Columns of a step of the product, which have one scale."""
        if self.is_by_row and self.kind == "i8":
            return UNIT
        return min(self.group, 32)

    @property
    def is_narrow(self) -> bool:
        """Whether two codes share a byte."""
        return self.kind in ("u4", "table", "steps")

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's codes."""
        return self.width // 2 if self.is_narrow else self.width

    @property
    def num_groups(self) -> int:
        """Groups of a row, with those of the padding."""
        return -(-self.width // self.group)

    @property
    def nest(self) -> int:
        """Columns that share a number of `scales`."""
        return NEST if self.is_nested else self.group

    def count(self, name: str) -> int:
        """Numbers of an array; 0 for one that the format does not have."""
        per_group = self.num_groups * self.rows
        per_nest = -(-self.width // self.nest) * self.rows
        counts = {
            "codes": self.rows * self.row_bytes,
            "scales": self.rows if self.is_by_row else per_nest,
            "subs": per_group * self.is_nested,
            "min_subs": per_group * (self.is_nested and self.has_minima),
            "zeros": per_group * self.has_zeros,
            "steps": per_group * (self.kind == "steps"),
            "offsets": per_group * (self.kind == "steps"),
            "minima": per_nest * self.has_minima,
            "order": self.depth * self.has_order,
        }
        return counts[name]

    def begin(self, name: str) -> int:
        """The first byte of an array."""
        names = list(_TYPES)
        return sum(map(self.array_bytes, names[: names.index(name)]))

    def array_bytes(self, name: str) -> int:
        """Bytes of an array with padding."""
        return aligned(self.count(name) * _TYPES[name])

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(map(self.array_bytes, _TYPES))

    def part(self, whole: Buffer, name: str) -> Buffer:
        """The place of an array in the place of the weight."""
        return whole.from_byte(self.begin(name), self.count(name) * _TYPES[name])

    @property
    def zero(self) -> int:
        """The zero of all groups, if they have none of their own."""
        return 8 if self.kind == "u4" and self.table == "s4" else 0

    def words(self) -> tuple[int, int]:
        """The 16 bytes of the table, as two integers of 64 bits; zeros if there is none."""
        if self.kind != "table":
            return 0, 0
        low, high = np.array(TABLES[self.table], np.int8).view(np.int64).tolist()
        return low, high


def layout_of(param: Param) -> CodedLayout:
    """Raises BackendError for a format that no kernel reads."""
    rows, depth, held = prod(param.shape[:-1]), param.shape[-1], param.format
    if not isinstance(held, GroupedFormat):
        kind: Kind = "i8" if BITS[held][0] == 8 else "steps"
        return CodedLayout(kind, rows, depth, OWN_GROUP, is_by_row=True)
    return CodedLayout(
        _kind_of(held), rows, depth, held.group, has_zeros=held.has_zeros,
        has_minima=held.has_minima, has_order=held.has_order,
        is_nested=held.scale == "nested", table=held.table,
    )  # fmt: skip


def _kind_of(held: GroupedFormat) -> Kind:
    is_fine = held.group == 16
    if held.table == "e4m3" and not is_fine:
        return "e4m3"
    is_fine_with_minima = is_fine and held.has_minima
    if held.table in ("s8", "s6", "u5", "s5") and not (held.has_zeros or is_fine_with_minima):
        return "i8"
    if held.table in ("u4", "s4") and not is_fine:
        return "u4"
    if held.table in ("u4", "s4", "iq4", "e2m1") and not held.has_minima:
        return "table"
    raise BackendError(f"the CUDA backend has no weight format {held}")


def split_halves(codes: NDArray[np.uint8], layout: CodedLayout) -> NDArray[np.uint8]:
    """Codes [N, width] of 4 bits as bytes [N, width / 2]."""
    halves = codes.reshape(len(codes), -1, 2, layout.step_k)
    packed: NDArray[np.uint8] = (halves[:, :, 0] | halves[:, :, 1] << 4).astype(np.uint8)
    return packed.reshape(len(codes), -1)


def joined_halves(packed: NDArray[np.uint8], step_k: int) -> NDArray[np.uint8]:
    """The codes [N, width] of `split_halves`."""
    units = packed.reshape(len(packed), -1, 1, step_k)
    codes: NDArray[np.uint8] = np.concatenate([units & 15, units >> 4], axis=2)
    return codes.reshape(len(packed), -1)
