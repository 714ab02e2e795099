"""The op that ends a program with vectors."""

from __future__ import annotations

from dataclasses import dataclass

from quire.backends.cpu.lowering.graph import lowers
from quire.backends.cpu.lowering.native_op import NativeOp
from quire.program import OpPlace, Value, Vectors


@dataclass(frozen=True, slots=True)
class NativeVectors(NativeOp):
    """The program's result: it goes straight to the caller's array, as wide as x. A last op."""

    x: Value
    name: str
    """Name of the value in the program."""

    @property
    def place(self) -> OpPlace:
        return OpPlace.named(self.name)


lowers(Vectors, lambda op: NativeVectors(op.x, op.out.name))
