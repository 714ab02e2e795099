"""Liveness analysis: the last read of each value, so that its memory can be reused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.program.values import Value

if TYPE_CHECKING:
    from quire.program.program import Program


def last_reads(program: Program) -> tuple[tuple[Value, ...], ...]:
    """For each op, the values that no later op reads and that are not the program's result.

    A value that no op reads is listed at the op that writes it.
    """
    dies_at: dict[Value, int] = {}
    for index, op in enumerate(program.ops):
        for value in (*op.inputs(), *op.outputs()):
            dies_at[value] = index
    for value in program.result.outputs():
        dies_at.pop(value, None)
    dying: list[list[Value]] = [[] for _ in program.ops]
    for value, index in dies_at.items():
        dying[index].append(value)
    return tuple(map(tuple, dying))
