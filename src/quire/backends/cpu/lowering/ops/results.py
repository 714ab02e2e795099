"""The ops that end a program with vectors: the mean of a request's rows, and the result itself."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from quire.backends.cpu.lowering.graph import lowers
from quire.backends.cpu.lowering.native_op import Fields, NativeOp
from quire.program import MeanRows, OpPlace, Value, Vectors


@dataclass(frozen=True, slots=True)
class NativeMean(NativeOp):
    """The mean of all rows of each request whose result is wanted, in float32."""

    struct: ClassVar[str] = "mean"
    takes_rows: ClassVar[bool] = True
    x: Value
    out: Value

    def float32_values(self, wide: Collection[Value]) -> tuple[Value, ...]:  # noqa: ARG002
        return (self.x, self.out)

    def fill(self, struct: Any, fields: Fields) -> None:
        fields.view(struct.x, self.x)
        fields.view(struct.out, self.out)


@dataclass(frozen=True, slots=True)
class NativeVectors(NativeOp):
    """The program's result: it goes straight to the caller's array."""

    struct: ClassVar[str] = "vectors"
    x: Value
    name: str
    """Name of the value in the program."""

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.name)

    def fill(self, struct: Any, fields: Fields) -> None:
        fields.view(struct.x, self.x)


lowers(MeanRows, lambda op: NativeMean(op.x, op.out))
lowers(Vectors, lambda op: NativeVectors(op.x, op.out.name))
