"""`NativeOp`: the interface of a native op to the rest of this backend.

Each class in `ops/` mirrors a struct of quire.h. It defines which ops of a program it replaces,
which values and weights it needs, how its values may share memory, and how it fills its struct.
`fuse`, `storage`, `encode`, `stored_weights` and `model` use only this interface.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from quire.config.records import Dtype
from quire.program import Activation, Op, OpPlace, Param, Split, Tensor, Value
from quire.program.ops import collect


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight as a native model stores it.

    A matrix is packed for products, a table has consecutive rows for lookups, a vector is float32.
    """

    kind: Literal["matrix", "table", "vector"]
    param: Param
    glu: bool = False
    """Whether the matrix consists of gate and up, packed side by side."""

    def __str__(self) -> str:
        return f"{self.kind} {self.param.name}" + " (gate and up)" * self.glu

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the checkpoint's tensors in this weight, in order."""
        parts = self.param.parts
        return tuple(_tensor_name(part) for part in parts)


def _tensor_name(part: Tensor) -> str:
    named = {" rows ": part.rows, " columns ": part.columns}
    runs = (
        name + " ".join(f"{first}+{count}" for first, count in runs)
        for name, runs in named.items()
        if runs is not None
    )
    return part.name + " transposed" * part.transposed + "".join(runs)


@dataclass(frozen=True, slots=True)
class Rotation:
    """The parameters of a rotary table; equal tables are built once."""

    inv_freq: tuple[float, ...]
    scale: float
    interleaved: bool
    axes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Home:
    """The place of a value without memory of its own: columns of another value, beginning at
    `first`."""

    value: Value
    first: int


ExchangeKind = Literal["columns", "owner", "send", "receive", "rows_in", "rows_out"]
"""The first four are exchanged with other ranks, the last two with the caller of a step."""


class Fields(Protocol):
    """Supplies the ids, codes and places in a native model with which an op fills its struct."""

    def code(self, name: str) -> int:
        """Return a constant of quire.h."""

    def activation(self, activation: Activation | None) -> int:
        """Return a quire_activation."""

    def view(self, view: Any, value: Value | None, dim: int | None = None) -> None:
        """Fills a quire_view. `dim`: width of `value` and its neighbours together; None: the width
        of `value`."""

    def dtype(self, value: Value) -> Dtype:
        """Return the dtype in which a value is stored."""

    def kv_place(self, place: Any, layer: int | None) -> None:
        """Fills a quire_kv_place. None: that of attention without a cache."""

    def state(self, state: Any, layer: int) -> None:
        """Fills a quire_state."""

    def weight(self, weight: StoredWeight) -> int:
        """Return the id of a matrix or a table."""

    def vector(self, param: Param | None, *, plus: float = 0.0) -> int:
        """Return the id of a vector with `plus` added to each number; -1 for None."""

    def gathered(self, param: Param, places: NDArray[np.intp]) -> int:
        """Add a vector of the weight's numbers at these places and return its id."""

    def constant(self, values: NDArray[np.float32]) -> int:
        """Add a vector of these numbers and return its id."""

    def rope(self, rotation: Rotation | None) -> int:
        """Return the id of a rotary table; -1 for None."""

    def exchange(self, kind: ExchangeKind, split: Split | None, value: Value | Dtype) -> int:
        """Return the number of a new exchange: of a value, or of rows of this dtype that an op
        exchanges; -1 if `kind` is "columns" and there is no split."""


@dataclass(frozen=True, slots=True)
class NativeOp(ABC):
    """Base class of the native ops, with defaults that suit most ops."""

    struct: ClassVar[str]
    """Name of the op's member of `quire_op.u`. QUIRE_OP_ and this name in capitals is its kind."""
    takes_rows: ClassVar[bool] = False
    """Whether the op reads all rows and writes only the rows for which logits are computed."""
    in_float32: ClassVar[bool] = True
    """Whether it reads its values in float32 even in a bfloat16 model."""

    @property
    def reads(self) -> tuple[Value, ...]:
        """Values read, including a residual: those of its `op`, if it has one, and of its fields
        except `out` and `outs`."""
        op: Op | None = getattr(self, "op", None)
        return (*(() if op is None else op.inputs()), *collect(self, Value, written=False))

    @property
    def writes(self) -> tuple[Value, ...]:
        """Values written: its `out` or `outs`, or those of its `op`."""
        op: Op | None = getattr(self, "op", None)
        return collect(self, Value, written=True) or (() if op is None else op.outputs())

    @abstractmethod
    def fill(self, struct: Any, fields: Fields) -> None:
        """Fills the op's struct."""

    @property
    def place(self) -> OpPlace:
        """Place in the program of the first op that this native op replaces."""
        return OpPlace.named(self.writes[0].name)

    @property
    def label(self) -> str:
        """Ops with the same label are counted together in a profile."""
        return self.struct

    @property
    def weights(self) -> tuple[StoredWeight, ...]:
        """Matrices and tables that the op reads. Vectors are not listed: a model stores all of
        them."""
        return ()

    @property
    def buffers(self) -> tuple[tuple[Value, ...], ...]:
        """The values written, in groups that share a buffer: a row of the buffer holds a row of
        each value of the group."""
        return tuple((value,) for value in self.writes)

    @property
    def homes(self) -> Mapping[Value, Home]:
        """Values read that lie in a value written."""
        return {}

    @property
    def exchanges(self) -> bool:
        """Whether the op waits for the other ranks of its stage."""
        return False

    @property
    def copied(self) -> Value | None:
        """The value of which the value written is a copy, with the same bits."""
        return None

    @property
    def adds_to(self) -> Value | None:
        """A value read whose memory the value written may reuse."""
        return None

    def float32_values(self, wide: Collection[Value]) -> tuple[Value, ...]:  # noqa: ARG002
        """Values that the op reads or writes in float32 even in a bfloat16 model.

        `wide`: values that later ops need in float32.
        """
        return self.reads if self.in_float32 else ()
