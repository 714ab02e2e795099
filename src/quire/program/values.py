"""The operands of a program: activations (`Value`) and weights (`Param`).

Both are records without storage; a backend owns the memory. `Param.parts` has the names of the
checkpoint's tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WeightFormat = Literal["dense", "int8", "int8_w8a8", "int4", "int4_w4a8"]
"""How a matrix is stored and multiplied. `dense` is the model's own dtype.

The others round weights to integers with a scale for each row; `int8` and `int4` keep activations
in 16 bits, `_w8a8` and `_w4a8` round them to 8 bits with a scale for each token.
`backends/reference` defines the result, including the rounding.
"""

ActivationBits = Literal[8, 16]
"""Bits of the activations that are multiplied with a matrix or with the KV cache."""


def activation_bits(weight_format: WeightFormat) -> ActivationBits:
    """The activations' bits of a program whose matrices have this format."""
    return 8 if weight_format.endswith("a8") else 16


@dataclass(frozen=True, slots=True)
class Value:
    """An activation [T, dim], written once by one op. `name` is unique in its program."""

    name: str
    dim: int

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as a checkpoint names and shapes it.

    `transposed` marks a matrix that the checkpoint holds as [K, N] where the slot
    wants [N, K] (GPT-2's Conv1D); `shape` is always the checkpoint's own.
    """

    name: str
    shape: tuple[int, ...]
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Param:
    """A weight slot: [N, K] for a matrix, [D] for a vector.

    `parts` are the checkpoint tensors stacked along the first axis, in order
    (q|k|v, gate|up); together they give exactly `shape`. Two ops may hold the same
    Param (a tied head): a backend loads it once.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[Tensor, ...]
    format: WeightFormat = "dense"

    @property
    def num_elements(self) -> int:
        """Product of the shape."""
        total = 1
        for size in self.shape:
            total *= size
        return total

    def __str__(self) -> str:
        size = "x".join(map(str, self.shape))
        return (
            f"{self.name}[{size}]"
            if self.format == "dense"
            else (f"{self.name}[{size} {self.format}]")
        )
