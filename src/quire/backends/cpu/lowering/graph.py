"""`Graph`: the readers and writers of a program's values. `lower`: converts ops to native ops."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import singledispatch
from typing import TypeVar

from quire.backends.cpu.lowering.native_op import NativeOp
from quire.errors import BackendError
from quire.program import Add, Op, Program, Value

OpKind = TypeVar("OpKind", bound=Op)


class Graph:
    """A program that is being lowered. Invariant: a joined op is part of a native op."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._readers: dict[Value, list[Op]] = defaultdict(list)
        self._writer: dict[Value, int] = {}
        self._joined: set[int] = set()
        for index, op in enumerate(program.ops):
            for value in op.inputs():
                self._readers[value].append(op)
            for value in op.outputs():
                self._writer[value] = index

    def join(self, op: Op) -> None:
        """Records that a native op does this op's work."""
        self._joined.add(id(op))

    def is_joined(self, op: Op) -> bool:
        """Whether a native op does this op's work already."""
        return id(op) in self._joined

    def readers(self, value: Value) -> list[Op]:
        """The ops that read a value; an op that reads it twice is listed twice."""
        return self._readers[value]

    def only_reader(self, value: Value) -> Op | None:
        """The op that reads a value; None if the number of readers is not 1."""
        readers = self._readers[value]
        return readers[0] if len(readers) == 1 else None

    def writer(self, value: Value) -> Op:
        """The op that writes a value."""
        return self.program.ops[self._writer[value]]

    def residual(self, value: Value, computed_with: Value) -> tuple[Add, Value] | None:
        """Return the Add that is the only reader of `value`, and its other operand. Return None
        unless that operand is written before `computed_with`."""
        reader = self.only_reader(value)
        if not isinstance(reader, Add) or reader.a == reader.b:
            return None
        other = reader.b if reader.a == value else reader.a
        return (reader, other) if self._writer[other] < self._writer[computed_with] else None


@singledispatch
def lower(op: Op, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001 (implementations use it)
    """Return the native ops for an op and the later ops that they join; () if a later native op
    does its work. Each module of `ops/` registers implementations for its ops."""
    raise BackendError(f"the CPU backend does not support the op {type(op).__name__}")


def lowers(kind: type[OpKind], make: Callable[[OpKind], NativeOp]) -> None:
    """Registers an op that becomes one native op, whatever is around it."""
    lower.register(kind, lambda op, _: (make(op),))
