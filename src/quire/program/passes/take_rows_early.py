"""Moves `TakeRows` to just after the last op that reads several rows of a request, or gives all
rows to the caller: later ops compute only the rows that need logits.

Each of those ops handles rows independently, so the numbers are the same. A prompt chunk of T
tokens needs logits for at most one row, so the output projection and feed-forward of the last layer
are skipped for the other rows.
"""

from __future__ import annotations

from dataclasses import fields, replace

from quire.program.ops import Op, TakeRows
from quire.program.program import Program
from quire.program.values import Value


def take_rows_early(program: Program) -> Program:
    """The program with a TakeRows after its last op that needs all rows, for each value that is
    read after it.

    Returns the program unchanged without such an op, or if a later one needs the step's tokens
    or positions. The other ops keep their parameters.
    """
    ops = list(program.ops)
    taken = next((i for i, op in enumerate(ops) if isinstance(op, TakeRows)), 0)
    needs_all = [op.rows == "request" or (op.gives_rows and i < taken) for i, op in enumerate(ops)]
    cut = 1 + max((i for i, needed in enumerate(needs_all) if needed), default=-1)
    tail = ops[cut:]
    takes = [op for op in tail if isinstance(op, TakeRows)]
    num_of_step = sum(op.rows == "step" for op in tail)
    if cut == 0 or len(takes) != 1 or num_of_step != 1:
        return program
    written = {value for op in ops[:cut] for value in op.outputs()}
    entering = dict.fromkeys(v for op in tail for v in op.inputs() if v in written)
    scope = (ops[cut - 1].outputs() or ops[cut - 1].inputs())[0].name.rpartition(".")[0]
    renamed = {
        value: Value(f"{scope}.taken{number}", value.dim)
        for number, value in enumerate(entering, start=1)
    }
    heads: list[Op] = [TakeRows(value, taken) for value, taken in renamed.items()]
    [old_take] = takes
    renamed[old_take.out] = renamed.get(old_take.x, old_take.x)
    body = [_read(op, renamed) for op in tail if op is not old_take]
    moved = Program(program.name, (*ops[:cut], *heads, *body))
    moved.check()
    return moved


def _read(op: Op, renamed: dict[Value, Value]) -> Op:
    changes = {
        field.name: renamed[value]
        for field in fields(op)
        if isinstance(value := getattr(op, field.name), Value)
        and value in renamed
        and field.name != "out"
    }
    return replace(op, **changes) if changes else op
