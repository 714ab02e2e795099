"""`NativeOp`: the interface of a native op to the rest of this backend.

Each class in `ops/` declares a struct of the native library: the build generates the struct from
the class's fields (`native/generate_structs.py`), and `encode` fills it from them. The class also
says how its values may share memory. `fuse`, `storage`, `encode`, `stored_weights` and `model` use
only this interface.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from quire.program import OpPlace, Param, Split, Tensor, Value
from quire.program.ops import collect
from quire.program.printer import snake_case


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
class Home:
    """The place of a value without memory of its own: columns of another value, beginning at
    `first`."""

    value: Value
    first: int


@dataclass(frozen=True, slots=True)
class Shifted:
    """The numbers of a vector with `plus` added to each."""

    param: Param
    plus: float


@dataclass(frozen=True, slots=True)
class Picked:
    """The numbers of a vector at these places."""

    param: Param
    places: tuple[int, ...]


Numbers = Param | Shifted | Picked | tuple[float, ...]
"""Numbers that a native model copies as a vector of float32."""

ExchangeKind = Literal["columns", "owner", "send", "receive", "rows_in", "rows_out"]
"""The first four are exchanged with other ranks, the last two with the caller of a step."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Rows that an op exchanges."""

    kind: ExchangeKind
    width: int
    """Numbers of a row."""
    like: Value | None = None
    """A value of their dtype; None: they are float32."""
    split: Split | None = None
    """Which columns each rank has; of "owner", which token ids."""

    @property
    def first(self) -> int:
        """This rank's first column."""
        return self.split.own[0] if self.split is not None and self.kind == "columns" else 0


KVLayer = int | None
"""The attention layer whose K and V an op reads or writes; None: K and V of the step alone."""


class NativePart:
    """Base of the parts of native ops: a struct in the struct of the op."""


@dataclass(frozen=True, slots=True)
class NativeOp:
    """Base class of the native ops, with defaults that suit most ops."""

    in_float32: ClassVar[bool] = True
    """Whether it reads its values in float32 even in a bfloat16 model."""

    @property
    def struct(self) -> str:
        """Name of the op's member of `quire_op.u`. QUIRE_OP_ and this name in capitals is its
        kind."""
        return snake_case(type(self).__name__.removeprefix("Native"))

    @property
    def record(self) -> object:
        """The dataclass whose fields the struct has."""
        return self

    @property
    def takes_rows(self) -> bool:
        """Whether the op reads all rows and writes only the rows for which logits are computed."""
        return False

    @property
    def reads(self) -> tuple[Value, ...]:
        """Values read, including a residual."""
        return collect(self.record, Value, written=False)

    @property
    def writes(self) -> tuple[Value, ...]:
        """Values written."""
        return collect(self.record, Value, written=True)

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
        return collect(self.record, StoredWeight, written=None)

    @property
    def buffers(self) -> tuple[tuple[Value, ...], ...]:
        """The values written, in groups that share a buffer: a row of the buffer holds a row of
        each value of the group. Those of `outs` lie side by side."""
        if hasattr(self.record, "outs"):
            return (self.writes,)
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
