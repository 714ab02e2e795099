"""Program -> native ops: what the executor can do in one pass over the data becomes one op.

    Linear (gate|up), Glu              one linear
    Linear, Act | Scale | Add          one linear, where only that op reads the product
    RmsNorm | LayerNorm, Add           one norm (models that norm a sublayer's output)
    HeadNorm, Rope (q, k), Attention   one heads op that also writes the cache, then attention

An op joins its producer only where nothing else reads the value between them, and where all
that the joint op reads exists already at the producer's place. Which ops a native op joins, its
module says (`ops/`).
"""

from __future__ import annotations

# Importing the ops registers them with `lower`.
import quire.backends.cpu.lowering.ops  # noqa: F401
from quire.backends.cpu.lowering.graph import Graph, lower
from quire.backends.cpu.lowering.native_op import NativeOp
from quire.program import Program


def fuse(program: Program) -> tuple[NativeOp, ...]:
    """The native ops in order of execution. Raises BackendError for an op it does not know."""
    graph = Graph(program)
    native: list[NativeOp] = []
    for op in program.ops:
        if not graph.is_joined(op):
            native.extend(lower(op, graph))
    return tuple(native)
