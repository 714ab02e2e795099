"""Cuts a program into stages, for ranks that compute one after the other (pipeline parallel).

A stage is a program of its own: it receives the values that cross the cut before it, and sends
those that cross the cut after it. Stages begin at layers, and are balanced by the bytes of their
weights. A layer that attends over the K and V of another one is in its stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from quire.errors import ConfigError
from quire.program.ops import Attention, Op, Receive, Send
from quire.program.printer import group_by_layer
from quire.program.program import Program
from quire.program.values import BITS, GroupedFormat, Param, Value


def cut(program: Program, num_stages: int) -> list[Program]:
    """The stages of a program, in their order. Memories are numbered from 0 in each.

    Raises ConfigError if there are fewer places to cut than are needed.
    """
    if num_stages == 1:
        return [program]
    places = [0, *_places(program), len(program.ops)]
    if program.module is not None or len(places) - 1 < num_stages:
        raise ConfigError(
            f"pipeline_parallel_size={num_stages}: the model can be cut into at most "
            f"{max(1, len(places) - 1)} stages"
        )
    chosen = _balanced([_weight_bytes(program.ops[a:b]) for a, b in _pairs(places)], num_stages)
    bounds = [places[index] for index in chosen]
    return [_stage(program, begin, end) for begin, end in _pairs(bounds)]


def _places(program: Program) -> list[int]:
    """The ops at which a stage may begin: the first ops of layers, of which no earlier attention
    keeps what a later one reads without writing it."""
    begins = list(accumulate(len(ops) for _, ops in group_by_layer(program.ops)))[:-1]
    layers = [layer for layer, _ in group_by_layer(program.ops)][1:]
    writers = {m.layer: i for i, op in enumerate(program.ops) for m in op.memories()}
    bound = [
        (writers[op.layer], index)
        for index, op in enumerate(program.ops)
        if isinstance(op, Attention) and op.layer is not None and op.k is None
    ]
    # A stage has attention: a place before the first or after the last of them is none.
    first, last = min(writers.values(), default=0), max(writers.values(), default=0)
    return [
        begin
        for begin, layer in zip(begins, layers, strict=True)
        if layer is not None
        and first < begin <= last
        and not any(writer < begin <= reader for writer, reader in bound)
    ]


def _balanced(sizes: Sequence[int], num_parts: int) -> list[int]:
    """Bounds of parts of neighbours, of which the largest is as small as possible."""
    sums = [0, *accumulate(sizes)]
    count = len(sizes)
    best: list[list[tuple[int, int]]] = [[(0, 0)] + [(sums[-1] + 1, 0)] * count]
    for part in range(1, num_parts + 1):
        row = [(sums[-1] + 1, 0)] * (count + 1)
        for end in range(part, count + 1):
            row[end] = min(
                (max(best[-1][begin][0], sums[end] - sums[begin]), begin)
                for begin in range(part - 1, end)
            )
        best.append(row)
    bounds = [count]
    for part in range(num_parts, 0, -1):
        bounds.insert(0, best[part][bounds[0]][1])
    return bounds


def _stage(program: Program, begin: int, end: int) -> Program:
    """The ops from `begin` to before `end` as a program."""
    first_memory = sum(len(op.memories()) for op in program.ops[:begin])
    ops: list[Op] = [_renumbered(op, first_memory) for op in program.ops[begin:end]]
    entering = _crossing(program, begin)
    leaving = _crossing(program, end)
    if entering:
        ops.insert(0, Receive(entering, program.vocab_size))
    if leaving:
        ops.append(Send(leaving))
    stage = replace(program, ops=tuple(ops), row_widths_of_whole=program.row_widths)
    stage.check()
    return stage


def _renumbered(op: Op, first_memory: int) -> Op:
    if not op.memories() and not isinstance(op, Attention):
        return op
    layer = getattr(op, "layer", None)
    return op if layer is None else replace(op, layer=layer - first_memory)  # type: ignore[call-arg]


def _crossing(program: Program, place: int) -> tuple[Value, ...]:
    """Values that are written before an op and read by it or later."""
    written = {value for op in program.ops[:place] for value in op.outputs()}
    read = (value for op in program.ops[place:] for value in op.inputs())
    return tuple(dict.fromkeys(value for value in read if value in written))


def _weight_bytes(ops: Sequence[Op]) -> int:
    params: dict[str, Param] = {param.name: param for op in ops for param in op.params()}
    return round(sum(_bits(param) * param.num_elements for param in params.values()) / 8)


def _bits(param: Param) -> float:
    if isinstance(param.format, GroupedFormat):
        return param.format.bits_per_weight
    return 16.0 if param.format == "dense" else BITS[param.format][0]


def _pairs(bounds: Sequence[int]) -> list[tuple[int, int]]:
    return list(pairwise(bounds))
