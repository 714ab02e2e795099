"""The places of values in memory, and the values that have rows of some tokens only."""

from __future__ import annotations

from collections.abc import Callable

from quire.program import MeanRows, Program, TakeRows, Value, last_reads

Places = list[tuple[tuple[Value, ...], int]]
"""The outputs of an op, and their first byte."""


def taken_values(program: Program) -> frozenset[Value]:
    """The values that have a row for each result that is wanted, instead of one for each token."""
    taken: set[Value] = set()
    for op in program.ops:
        if isinstance(op, TakeRows | MeanRows) or taken.intersection(op.inputs()):
            taken.update(op.outputs())
    return frozenset(taken)


def plan_values(program: Program, num_bytes: Callable[[int], int]) -> tuple[Places, int]:
    """The places of the outputs of all ops but the result, and the bytes that they need together.
    `num_bytes`: bytes of values that are as many numbers wide."""
    places: Places = []
    free: list[tuple[int, int]] = []
    """Bytes from .. to that are not in use, ascending."""
    end = 0
    held: dict[Value, tuple[int, int, set[Value]]] = {}
    for op, dying in zip(program.ops, last_reads(program), strict=True):
        outs = op.outputs()
        if outs and op is not program.result:
            size = num_bytes(sum(out.dim for out in outs))
            begin, end = _taken(free, size, end)
            places.append((outs, begin))
            held.update(dict.fromkeys(outs, (begin, size, set(outs))))
        for value in dying:
            if value not in held:
                continue
            begin, size, living = held.pop(value)
            living.discard(value)
            if not living:
                _give_back(free, begin, begin + size)
    return places, end


def _taken(free: list[tuple[int, int]], size: int, end: int) -> tuple[int, int]:
    """Takes the first gap that is large enough, or memory at the end: its begin, and the new
    end."""
    for index, (begin, stop) in enumerate(free):
        if stop - begin >= size or stop == end:
            rest = (begin + size, stop)
            free[index : index + 1] = [rest] if rest[0] < rest[1] else []
            return begin, max(end, begin + size)
    return end, end + size


def _give_back(free: list[tuple[int, int]], begin: int, stop: int) -> None:
    """Adds a gap and joins it with its neighbours."""
    free.append((begin, stop))
    free.sort()
    joined: list[tuple[int, int]] = []
    for first, last in free:
        if joined and joined[-1][1] == first:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    free[:] = joined
