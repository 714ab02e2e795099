"""Which rows of a weight a rank has: slices of `Param`s, for the pass `shard`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod

from quire.program.values import Param, Share, Split, Tensor

Run = tuple[int, int]
"""The first row and the number of rows."""

_STEP = 32
"""Spans begin at multiples of it where a value is wide enough: kernels compute as many columns at
once, and packed files have them side by side."""


def even(size: int, num_ranks: int, rank: int, step: int = _STEP) -> Split | None:
    """Spans of nearly one size; None if there are fewer columns than ranks."""
    if size < num_ranks:
        return None
    step = step if size >= step * num_ranks else 1
    bounds = [size // step * r // num_ranks * step for r in range(num_ranks)]
    return Split(between([*bounds, size]), rank)


def between(bounds: Sequence[int]) -> tuple[Run, ...]:
    """The spans that lie between neighbouring bounds."""
    return tuple((a, b - a) for a, b in itertools.pairwise(bounds))


def shared(param: Param, runs: Sequence[Run]) -> Param:
    """The slot with these rows, in this order; of experts, with these rows of each matrix."""
    *experts, rows = param.shape[:-1] if len(param.shape) > 1 else param.shape
    count = sum(number for _, number in runs)
    shape = (*experts, count, *param.shape[1:][len(experts) :])
    every = [
        (expert * rows + first, number) for expert in range(prod(experts)) for first, number in runs
    ]
    if any(len(part.shape) == 3 for part in param.parts):
        parts = tuple(_taken(part, runs) for part in param.parts)
    else:
        parts = tuple(_taken_of_parts(param.parts, every, is_vector=len(param.shape) == 1))
    return replace(param, shape=shape, parts=parts, share=Share(rows, tuple(runs)))


def shared_by_expert(param: Param, num_experts: int, runs: Sequence[Run]) -> Param:
    """A vector with `num_experts` pieces one after the other, of each these numbers."""
    size = param.shape[0] // num_experts
    every = [(e * size + first, number) for e in range(num_experts) for first, number in runs]
    return shared(param, every)


def _taken_of_parts(
    parts: Iterable[Tensor], runs: Sequence[Run], *, is_vector: bool
) -> list[Tensor]:
    """Runs of the rows of all parts together; of a vector, runs of its numbers."""
    found: list[Tensor] = []
    for first, number in runs:
        begin = 0
        for part in parts:
            width = prod(part.slot_shape[1:]) if is_vector else 1
            size = part.slot_shape[0] * width
            low, high = max(first, begin), min(first + number, begin + size)
            if low < high:
                run = ((low - begin) // width, (high - low) // width)
                _append(found, _taken(part, [run]))
            begin += size
    return found


def _append(parts: list[Tensor], part: Tensor) -> None:
    """Adds a part; to the one before it, if that has rows of the same tensor."""
    last = parts[-1] if parts else None
    if last is None or replace(last, rows=None, columns=None) != replace(
        part, rows=None, columns=None
    ):
        parts.append(part)
        return
    (first, number), (begin, more) = last.slot_runs[-1], part.slot_runs[0]
    is_next = first + number == begin
    joined = (*last.slot_runs[:-1], (first, number + more)) if is_next else last.slot_runs
    rest = part.slot_runs[1:] if is_next else part.slot_runs
    parts[-1] = last.with_slot_runs((*joined, *rest))


def _taken(part: Tensor, runs: Sequence[Run]) -> Tensor:
    """Runs of the rows that the slot has of a part, as runs of the tensor."""
    taken: list[Run] = []
    for first, number in runs:
        begin = 0
        for at, count in part.slot_runs:
            low, high = max(first, begin), min(first + number, begin + count)
            if low < high:
                taken.append((at + low - begin, high - low))
            begin += count
    return part.with_slot_runs(tuple(taken))
