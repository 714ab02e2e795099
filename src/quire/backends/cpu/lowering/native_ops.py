"""The native executor's ops, still over Values and Params: what `fuse` makes of a Program.

Each mirrors a struct of quire.h. `reads` and `writes` are what storage assignment needs to know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quire.program import LOGITS, Activation, ActivationBits, OpPlace, Param, Value

NormKind = Literal["rms", "layer"]
HeadsTarget = Literal["view", "keys", "values"]
PointwiseKind = Literal["add", "glu", "act", "scale"]


@dataclass(frozen=True, slots=True)
class NativeOp:
    """Base: which values an op reads and writes."""

    @property
    def reads(self) -> tuple[Value, ...]:
        """Values read, those of a residual included."""
        raise NotImplementedError

    @property
    def writes(self) -> tuple[Value, ...]:
        """Values written: one, or neighbours in one buffer."""
        raise NotImplementedError

    @property
    def place(self) -> OpPlace:
        """Where the first of the program's ops stands that it does the work of."""
        return OpPlace.named(self.writes[0].name)


@dataclass(frozen=True, slots=True)
class NativeEmbed(NativeOp):
    """Rows of the embedding table."""

    out: Value
    table: Param
    scale: float

    @property
    def reads(self) -> tuple[Value, ...]:
        return ()

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.out,)

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.table.name)


@dataclass(frozen=True, slots=True)
class NativePositions(NativeOp):
    """x plus rows of the position table."""

    x: Value
    out: Value
    table: Param
    offset: int

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.out,)

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.table.name)


@dataclass(frozen=True, slots=True)
class NativeNorm(NativeOp):
    """Norm over whole rows, plus `residual` if there is one."""

    x: Value
    out: Value
    kind: NormKind
    weight: Param | None
    bias: Param | None
    eps: float
    weight_offset: float = 0.0
    residual: Value | None = None

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.x,) if self.residual is None else (self.x, self.residual)

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.out,)

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.out.name if self.weight is None else self.weight.name)


@dataclass(frozen=True, slots=True)
class NativeLinear(NativeOp):
    """A product with everything that its epilogue takes: scale, bias, activation, residual.

    `glu`: the weight is gate|up and the single out is activation(gate) * up.
    """

    x: Value
    outs: tuple[Value, ...]
    weight: Param
    bias: Param | None
    scale: float = 1.0
    activation: Activation | None = None
    glu: bool = False
    residual: Value | None = None

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.x,) if self.residual is None else (self.x, self.residual)

    @property
    def writes(self) -> tuple[Value, ...]:
        return self.outs

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.weight.name)


@dataclass(frozen=True, slots=True)
class Rotation:
    """A rotary table; equal ones are built once."""

    inv_freq: tuple[float, ...]
    scale: float
    interleaved: bool


@dataclass(frozen=True, slots=True)
class HeadsPart:
    """Heads of one value: normed, rotated, and put into `out` or the cache."""

    x: Value
    num_heads: int
    target: HeadsTarget
    out: Value | None = None
    norm: Param | None = None
    norm_offset: float = 0.0
    eps: float = 0.0
    rotation: Rotation | None = None


@dataclass(frozen=True, slots=True)
class NativeHeads(NativeOp):
    """One to three parts: q, k and v on their way to attention, or a lone value."""

    parts: tuple[HeadsPart, ...]
    head_dim: int
    layer: int | None = None
    """Whose cache k and v go to; None: there is neither."""

    @property
    def reads(self) -> tuple[Value, ...]:
        return tuple(part.x for part in self.parts)

    @property
    def writes(self) -> tuple[Value, ...]:
        return tuple(part.out for part in self.parts if part.out is not None)


@dataclass(frozen=True, slots=True)
class NativeAttention(NativeOp):
    """q against the cache, which holds this step's k and v already.

    `taken_only`: of `out` nothing is read but the rows whose logits are wanted.
    """

    q: Value
    out: Value
    layer: int
    num_heads: int
    scale: float
    window: int | None
    softcap: float | None
    alibi_slopes: tuple[float, ...] | None
    activation_bits: ActivationBits
    taken_only: bool

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.q,)

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.out,)

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.out.name, reads_cache=True)


@dataclass(frozen=True, slots=True)
class NativePointwise(NativeOp):
    """Elementwise leftovers."""

    kind: PointwiseKind
    a: Value
    out: Value
    b: Value | None = None
    activation: Activation | None = None
    factor: float = 1.0

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.a,) if self.b is None else (self.a, self.b)

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.out,)


@dataclass(frozen=True, slots=True)
class NativeTakeRows(NativeOp):
    """The rows whose logits are wanted."""

    x: Value
    out: Value

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[Value, ...]:
        return (self.out,)


@dataclass(frozen=True, slots=True)
class NativeLogits(NativeOp):
    """The head and sampling; its result never lies in the workspace."""

    x: Value
    weight: Param
    bias: Param | None
    scale: float
    softcap: float | None

    @property
    def reads(self) -> tuple[Value, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[Value, ...]:
        return ()

    @property
    def place(self) -> OpPlace:
        return LOGITS
