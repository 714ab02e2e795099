"""Adds what a draft head reads of a model: hidden states, which a step gives to its caller.

Called by `planning`, before the other passes. The rows keep their bits, and so does all else.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.errors import ConfigError
from quire.program.ops import Op, RowsOut, TakeRows
from quire.program.program import Program


def give_hidden(program: Program, layers: Sequence[int]) -> Program:
    """The program, which gives the inputs of these layers side by side; without layers, the last
    hidden states. The number of layers stands for the result of the last one. Raises ConfigError
    if the program has no such rows."""
    ops = list(program.ops)
    places = [i for i, op in enumerate(ops) if isinstance(op, TakeRows)]
    if layers:
        places = [_end(ops, layer - 1) for layer in layers]
    if not places or 0 in places:
        raise ConfigError(f"speculative_config.method: {program.name} gives no hidden states")
    for place in sorted(places, reverse=True):
        value = ops[place - 1].outputs()[0] if layers else ops[place].inputs()[0]
        ops.insert(place, RowsOut(value))
    given = Program(program.name, tuple(ops))
    given.check()
    return given


def _end(ops: Sequence[Op], layer: int) -> int:
    """The index after the last op of a layer; 0: it has none."""
    begin = f"layers.{layer}."
    own = [i for i, op in enumerate(ops) if op.outputs() and op.outputs()[0].name.startswith(begin)]
    return max(own) + 1 if own else 0
