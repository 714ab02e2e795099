"""Converts a program to native ops. Ops that need one pass over the data become one native op.

    Linear (gate|up), Glu              one linear
    Linear, Act | Scale | Add          one linear, where only that op reads the product
    RmsNorm | LayerNorm, Add           one norm (models that norm a sublayer's output)
    HeadNorm, Rope (q, k), Attention   one heads op that also writes the cache, then attention

An op is fused with its producer only if no other op reads the value between them, and if everything
else that the fused op reads is written before the producer. The module of a native op (`ops/`)
decides which ops it fuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

# Importing the ops registers them with `lower`.
import quire.backends.cpu.lowering.ops  # noqa: F401
from quire.backends.cpu.lowering.graph import Graph, lower
from quire.backends.cpu.lowering.native_op import Home, NativeOp
from quire.program import Columns, Program, SourcesEnd, Value


def fuse(program: Program) -> tuple[NativeOp, ...]:
    """Return the native ops in order of execution. Raises BackendError for an unknown op."""
    return tuple(native for _, native in _lowered(program))


def num_source_ops(program: Program) -> int:
    """The number of native ops that are computed for source rows alone, which are the first."""
    end = next((i for i, op in enumerate(program.ops) if isinstance(op, SourcesEnd)), 0)
    return sum(index < end for index, _ in _lowered(program)) if end else 0


def _lowered(program: Program) -> Iterator[tuple[int, NativeOp]]:
    """The native ops, each with the index of the op of which it was made."""
    graph = Graph(program)
    for index, op in enumerate(program.ops):
        if not graph.is_joined(op):
            yield from ((index, native) for native in lower(op, graph))


def homes(program: Program, ops: Sequence[NativeOp]) -> dict[Value, Home]:
    """The values that lie in others: parts of values that are exchanged, and columns of a value."""
    found = {op.out: Home(op.x, op.first) for op in program.ops if isinstance(op, Columns)}
    for native in ops:
        found.update(native.homes)
    return found
