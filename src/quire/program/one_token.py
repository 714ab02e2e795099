"""What of a program's weights the computation of one token reads."""

from __future__ import annotations

from dataclasses import replace

from quire.program.ops import Embed, Experts, LearnedPositions, Op
from quire.program.program import Program
from quire.program.values import Param


def one_token(program: Program) -> Program:
    """The program with as many experts as a token takes, and tables of one row: its weights are
    what one token reads. A table that is the head too is read as a whole."""
    head = program.logits.weight.name

    def shrunk(op: Op) -> Op:
        if isinstance(op, Experts):
            return replace(op, gate_up=_first(op.gate_up, op.top_k), down=_first(op.down, op.top_k))
        if isinstance(op, Embed | LearnedPositions) and op.table.name != head:
            return replace(op, table=_first(op.table, 1))
        return op

    return replace(program, ops=tuple(map(shrunk, program.ops)))


def _first(param: Param, count: int) -> Param:
    return replace(param, shape=(count, *param.shape[1:]))
