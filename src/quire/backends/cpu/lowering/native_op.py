"""What a native op is: all that the rest of this backend asks of one.

Each class in `ops/` mirrors a struct of quire.h. It says how it is made from the program's ops,
which values and weights it needs, where its values may lie, and how it is written as that struct.
`fuse`, `storage`, `encode`, `stored_weights` and `model` ask it, and know none of the classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from quire.program import Activation, OpPlace, Param, Tensor, Value


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight as a native model stores it.

    A matrix is packed for products, a table lies row by row for lookups, a vector is float32.
    """

    kind: Literal["matrix", "table", "vector"]
    param: Param
    glu: bool = False
    """Of a matrix: gate and up lie side by side."""

    def __str__(self) -> str:
        return f"{self.kind} {self.param.name}" + " (gate and up)" * self.glu

    @property
    def tensors(self) -> tuple[str, ...]:
        """The checkpoint's tensors in it, in order."""
        parts = self.param.parts
        return tuple(_tensor_name(part) for part in parts)


def _tensor_name(part: Tensor) -> str:
    rows = "" if part.rows is None else " rows " + " ".join(f"{a}+{n}" for a, n in part.rows)
    return part.name + " transposed" * part.transposed + rows


@dataclass(frozen=True, slots=True)
class Rotation:
    """A rotary table; equal ones are built once."""

    inv_freq: tuple[float, ...]
    scale: float
    interleaved: bool


class Fields(Protocol):
    """What an op's struct is filled with: ids, codes and places in one native model."""

    def code(self, name: str) -> int:
        """A constant of quire.h."""

    def activation(self, activation: Activation | None) -> int:
        """quire_activation."""

    def view(self, view: Any, value: Value | None, dim: int | None = None) -> None:
        """Fills a quire_view. `dim`: of all neighbours together, from `value` on."""

    def kv_place(self, place: Any, layer: int) -> None:
        """Fills a quire_kv_place."""

    def weight(self, weight: StoredWeight) -> int:
        """The id of a matrix or a table."""

    def vector(self, param: Param | None, *, plus: float = 0.0) -> int:
        """The id of a vector with `plus` added to each number; -1 for none."""

    def constant(self, values: NDArray[np.float32]) -> int:
        """The id of a new vector of these numbers."""

    def rope(self, rotation: Rotation | None) -> int:
        """The id of a rotary table; -1 for none."""


@dataclass(frozen=True, slots=True)
class NativeOp(ABC):
    """Base of the native ops. A subclass overrides what is different from most ops."""

    struct: ClassVar[str]
    """Its member of `quire_op.u`; in capitals, after QUIRE_OP_, its kind."""
    takes_rows: ClassVar[bool] = False
    """It writes only rows whose logits are wanted, whatever it reads."""

    @property
    @abstractmethod
    def reads(self) -> tuple[Value, ...]:
        """Values read, those of a residual included."""

    @property
    @abstractmethod
    def writes(self) -> tuple[Value, ...]:
        """Values written."""

    @abstractmethod
    def fill(self, struct: Any, fields: Fields) -> None:
        """Writes the op into its struct."""

    @property
    def place(self) -> OpPlace:
        """Where the first of the program's ops stands that it does the work of."""
        return OpPlace.named(self.writes[0].name)

    @property
    def label(self) -> str:
        """Ops with the same label are counted together in a profile."""
        return self.struct

    @property
    def weights(self) -> tuple[StoredWeight, ...]:
        """Matrices and tables; vectors are stored with every model that has them."""
        return ()

    @property
    def buffers(self) -> tuple[tuple[Value, ...], ...]:
        """The values written, in groups that lie side by side, a row of each after the other."""
        return tuple((value,) for value in self.writes)

    @property
    def adds_to(self) -> Value | None:
        """A value read whose memory may become that of the value written."""
        return None

    def float32_values(self, wide: Collection[Value]) -> tuple[Value, ...]:  # noqa: ARG002
        """Values that it reads or writes in float32, in a model of any dtype.

        `wide`: those that later ops want so.
        """
        return self.reads
