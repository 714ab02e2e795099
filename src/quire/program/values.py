"""The operands of a program: activations (`Value`) and weights (`Param`).

Both are records without storage; a backend owns the memory. `Param.parts` has the names of the
checkpoint's tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

WeightFormat = Literal["dense", "int8", "int8_w8a8", "int4", "int4_w4a8"]
"""Storage and multiplication of a matrix. `dense` is the model's own dtype.

The other formats round weights to integers with a scale for each row; `int8` and `int4` keep
activations in 16 bits, `_w8a8` and `_w4a8` round them to 8 bits with a scale for each token.
`backends/reference` defines the result, including the rounding.
"""

ActivationBits = Literal[8, 16]
"""Bits of the activations that are multiplied with a matrix or with the KV cache."""

BITS: dict[WeightFormat, tuple[Literal[4, 8], ActivationBits]] = {
    "int8": (8, 16),
    "int8_w8a8": (8, 8),
    "int4": (4, 16),
    "int4_w4a8": (4, 8),
}
"""Bits of a weight and of an activation."""

WEIGHT_FORMATS: tuple[WeightFormat, ...] = ("dense", *BITS)

FLOAT_TABLES = ("e4m3", "nf4", "fp4")
"""Tables of floats: bytes with 4 bits of exponent and 3 of mantissa; two tables of bitsandbytes
with 16 numbers."""

CodeTable = Literal[
    "u4", "s4", "iq4", "e2m1", "s8", "s6", "u5", "s5", "e4m3", "nf4", "fp4"
]  # fmt: skip
"""Meaning of the codes of a grouped format: 0..15; -8..7; the 16 numbers of llama.cpp's IQ4_NL;
floats with 2 bits of exponent and 1 of mantissa, doubled; then integers with the number of bits in
the name, signed (s) or unsigned; then FLOAT_TABLES. Codes are stored without a sign:
half of their range is added to integers."""

ACTIVATION_BLOCK = 32
"""Number of activations that share a scale, in formats with activation blocks."""


NEST = 256
"""Number of weights along K that share the factor of nested scales."""


@dataclass(frozen=True, slots=True)
class GroupedFormat:
    """The numbers of a quantised checkpoint, held without rounding them again.

    A weight is (number of its code - zero) * scale + minimum; scale, zero and minimum are those of
    its group: `group` neighbours along K in one row, 16, 32, 64 or 128 of them.
    """

    table: CodeTable
    group: int
    has_zeros: bool = False
    """Whether each group has a zero, an integer from 0 to 15; otherwise zero is 0."""
    has_minima: bool = False
    scale: Literal["f16", "f32", "nested", "e4m3"] = "f32"
    """Storage of scales and minima. Nested: signed bytes times a float16 that 256 neighbours along
    K share; the products are exact in float32. E4m3: 8-bit floats, divided by a float32 of the
    row."""
    has_order: bool = False
    """Whether groups are neighbours in a column order that the matrix stores, instead of along
    K."""
    activation_bits: ActivationBits = 16
    """Bits of activations for integer codes. With float codes, activations are not rounded."""
    activation_blocks: bool = False
    """Whether 8-bit activations have a scale for each ACTIVATION_BLOCK neighbours in a row, instead
    of one per row."""

    @property
    def code_bits(self) -> int:
        if self.table == "e4m3":
            return 8
        return int(self.table[1]) if self.table[0] in "us" else 4

    @property
    def is_float(self) -> bool:
        """Whether codes stand for floats instead of integers."""
        return self.table in FLOAT_TABLES

    @property
    def bits_per_weight(self) -> float:
        """Bits per weight including scales, zeros and minima, for rows of whole groups."""
        numbers = 1 + self.has_minima
        scale_bits = {"f16": 16, "f32": 32, "nested": 8, "e4m3": 8}[self.scale]
        of_group = scale_bits * numbers + 8 * self.has_zeros
        nests = 16 * numbers / NEST if self.scale == "nested" else 0
        return self.code_bits + of_group / self.group + nests

    def num_groups(self, depth: int) -> int:
        """Number of groups in a row of `depth` weights; the last group may be shorter."""
        return -(-depth // self.group)

    def with_activations_of(self, other: GroupedFormat) -> GroupedFormat:
        """The same weights with the activations of another format."""
        return replace(
            self, activation_bits=other.activation_bits, activation_blocks=other.activation_blocks
        )

    def __str__(self) -> str:
        more = "+zero" * self.has_zeros + "+min" * self.has_minima + "+order" * self.has_order
        weights = f"{self.table} g{self.group} {self.scale}{more}"
        if self.is_float:
            return weights
        blocks = f"/{ACTIVATION_BLOCK}" if self.activation_blocks else ""
        return f"{weights} a{self.activation_bits}{blocks}"


def activation_bits(weight_format: WeightFormat | GroupedFormat) -> ActivationBits:
    """The activations' bits of a program whose matrices have this format."""
    if isinstance(weight_format, GroupedFormat):
        return weight_format.activation_bits
    return 16 if weight_format == "dense" else BITS[weight_format][1]


@dataclass(frozen=True, slots=True)
class Value:
    """An activation [T, dim], written once by one op. `name` is unique in its program."""

    name: str
    dim: int

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor with its name and shape in the checkpoint.

    `transposed` marks a matrix that the checkpoint holds as [K, N] where the slot
    wants [N, K] (GPT-2's Conv1D); `shape` is always the checkpoint's own.

    `rows`: the runs (first row, number of rows) of the tensor that the slot contains, in order;
    None: all rows. They select q, k and v from one tensor, even if their heads are interleaved.
    `columns`: the same for the columns. The rows of a transposed matrix become columns of the slot,
    and its columns become rows.

    A tensor of three dimensions has a matrix for each expert; the runs are those of each matrix.
    """

    name: str
    shape: tuple[int, ...]
    transposed: bool = False
    rows: tuple[tuple[int, int], ...] | None = None
    columns: tuple[tuple[int, int], ...] | None = None

    @property
    def slot_shape(self) -> tuple[int, ...]:
        """The shape of its part of the slot."""
        *experts, n, k = self.shape if len(self.shape) > 1 else (*self.shape, 1)
        if self.rows is not None:
            n = sum(count for _, count in self.rows)
        if self.columns is not None:
            k = sum(count for _, count in self.columns)
        if len(self.shape) == 1:
            return (n,)
        return (*experts, k, n) if self.transposed else (*experts, n, k)

    @property
    def slot_runs(self) -> tuple[tuple[int, int], ...]:
        """The runs of the tensor that become rows of the slot: of its rows, or of its columns if it
        is transposed."""
        size = self.shape[-1] if self.transposed or len(self.shape) == 1 else self.shape[-2]
        return (self.columns if self.transposed else self.rows) or ((0, size),)

    def with_slot_runs(self, runs: tuple[tuple[int, int], ...]) -> Tensor:
        """The same tensor with other `slot_runs`."""
        return replace(self, columns=runs) if self.transposed else replace(self, rows=runs)

    @property
    def num_rows(self) -> int:
        """Number of rows of length K, of all experts together."""
        *rows, _ = self.slot_shape
        return prod(rows)


@dataclass(frozen=True, slots=True)
class Split:
    """Which columns of a value, or rows of a table, each rank of a group has."""

    spans: tuple[tuple[int, int], ...]
    """(first, number) for each rank. Ranks may have the same ones, such as a KV head that several
    ranks read."""
    rank: int
    """The rank whose program this is."""

    @property
    def own(self) -> tuple[int, int]:
        """The span of this rank."""
        return self.spans[self.rank]

    @property
    def total(self) -> int:
        """Columns that the ranks have together."""
        return max(first + count for first, count in self.spans)

    @property
    def is_partition(self) -> bool:
        """Whether every column has one owner, so that the whole value can be gathered."""
        ends = [first + count for first, count in self.spans]
        return [first for first, _ in self.spans] == [0, *ends[:-1]]

    def scaled(self, factor: int) -> Split:
        """The same split of something in which each column has become `factor` columns."""
        return replace(
            self, spans=tuple((first * factor, count * factor) for first, count in self.spans)
        )

    def __str__(self) -> str:
        return "|".join(f"{first}+{count}" for first, count in self.spans)


@dataclass(frozen=True, slots=True)
class Share:
    """The rows of a whole weight that a rank has: `runs` (first, number) out of `total`. Of the
    weights of experts, rows of each expert's matrix."""

    total: int
    runs: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        return " ".join(f"{first}+{count}" for first, count in self.runs)


@dataclass(frozen=True, slots=True)
class Param:
    """A weight slot: [N, K] for a matrix, [D] for a vector, [E, N, K] for a matrix of each expert.

    `parts` are the checkpoint tensors stacked along the first axis, in order
    (q|k|v, gate|up); together they give exactly `shape`, read row by row where that is a vector and
    a part is not. Parts of [E, N, K] are matrices whose rows follow each other, expert after
    expert, or one tensor with all of them. Two ops may hold the same Param (a tied head): a backend
    loads it once.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[Tensor, ...]
    format: WeightFormat | GroupedFormat = "dense"
    share: Share | None = None
    """This rank's share of the weight; None: all."""

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        return prod(self.shape)

    def __str__(self) -> str:
        size = "x".join(map(str, self.shape))
        return (
            f"{self.name}[{size}]"
            if self.format == "dense"
            else (f"{self.name}[{size} {self.format}]")
        )


Vector = Param
"""A weight of which an op reads single numbers."""
Matrix = Param
"""A weight that an op multiplies with."""
Table = Param
"""A weight of which an op looks up rows."""
