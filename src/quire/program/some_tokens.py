"""The weights of a program that the computation of some tokens reads."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quire.program.ops import Embed, EmbedSlices, Experts, LearnedPositions, Op
from quire.program.values import Param

if TYPE_CHECKING:
    from quire.program.program import Program


def some_tokens(program: Program, num_tokens: int) -> Program:
    """A program whose weights are those that a step of `num_tokens` tokens reads: with the average
    number of different experts, if all are equally likely, and with `num_tokens` rows of tables. A
    table that is also the head is read completely, and so are the weights of a `Module`."""
    if program.module is not None:
        return program
    head = program.head_name

    def shrunk(op: Op) -> Op:
        if isinstance(op, Experts):
            count = _experts_taken(op, num_tokens)
            return replace(op, gate_up=_first(op.gate_up, count), down=_first(op.down, count))
        if isinstance(op, Embed | EmbedSlices | LearnedPositions) and op.table.name != head:
            return replace(op, table=_first(op.table, num_tokens))
        return op

    return replace(program, ops=tuple(map(shrunk, program.ops)))


def _experts_taken(op: Experts, num_tokens: int) -> int:
    """Average number of different experts."""
    count = op.gate_up.shape[0]
    return round(count * (1 - (1 - op.top_k / count) ** num_tokens))


def _first(param: Param, count: int) -> Param:
    return replace(param, shape=(min(count, param.shape[0]), *param.shape[1:]))
