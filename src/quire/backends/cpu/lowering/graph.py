"""A program while it becomes native ops: which ops read and write a value, and `lower`."""

from __future__ import annotations

from collections import defaultdict
from functools import singledispatch

from quire.backends.cpu.lowering.native_op import NativeOp
from quire.errors import BackendError
from quire.program import Add, Op, Program, Value


class Graph:
    """One walk over a program. Invariant: an op that was joined is part of a native op."""

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
        """Notes that a native op does this op's work."""
        self._joined.add(id(op))

    def is_joined(self, op: Op) -> bool:
        """Whether a native op does its work already."""
        return id(op) in self._joined

    def readers(self, value: Value) -> list[Op]:
        """The ops that read a value, once for each time."""
        return self._readers[value]

    def only_reader(self, value: Value) -> Op | None:
        """The op that reads a value, if there is one alone."""
        readers = self._readers[value]
        return readers[0] if len(readers) == 1 else None

    def writer(self, value: Value) -> Op:
        """The op that writes a value."""
        return self.program.ops[self._writer[value]]

    def residual(self, value: Value, computed_with: Value) -> tuple[Add, Value] | None:
        """The Add that alone reads `value`, and its other operand, if that exists by the time
        that `computed_with` is written."""
        reader = self.only_reader(value)
        if not isinstance(reader, Add) or reader.a == reader.b:
            return None
        other = reader.b if reader.a == value else reader.a
        return (reader, other) if self._writer[other] < self._writer[computed_with] else None


@singledispatch
def lower(op: Op, graph: Graph) -> tuple[NativeOp, ...]:  # noqa: ARG001 (what the real ones take)
    """The native ops that do the work of an op, and of later ops that they join; none where a
    later native op does it. Each module of `ops/` registers this for its own."""
    raise BackendError(f"the CPU backend has no op {type(op).__name__}")
