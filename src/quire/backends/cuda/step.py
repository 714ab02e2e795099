"""`Step`: the integers of one step on the device, and how many rows it has.

Each lowered op says which arrays of integers it reads (`StepArray`). They are put one after the
other into one buffer, which is uploaded once a step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import CompileOptions, KVCacheSpec, StepBatch
from quire.backends.cuda.memory import Buffer, Memory

Integers = NDArray[np.int32]

_UNIT = 4
"""Each array begins at a multiple of so many integers: 16 bytes."""


@dataclass(frozen=True, slots=True)
class StepArray:
    """Integers that ops read in each step."""

    make: Callable[[StepBatch], Integers]
    most: int
    """The most integers that there may be."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step that is about to run: what emitters see of it."""

    batch: StepBatch
    buffers: Mapping[Hashable, Buffer]
    shapes: Mapping[Hashable, tuple[int, ...]]

    @property
    def num_tokens(self) -> int:
        """Rows of most values."""
        return len(self.batch.token_ids)

    @property
    def num_taken(self) -> int:
        """Rows of the values after `TakeRows`."""
        return len(self.batch.logits_rows)


class StepArrays:
    """All arrays of a model's steps."""

    def __init__(self, kv: KVCacheSpec, options: CompileOptions) -> None:
        tokens, size = options.max_num_tokens, kv.block_size
        entries = -(-options.max_model_len // size) + 1
        self._arrays: dict[Hashable, StepArray] = {
            "token_ids": StepArray(lambda batch: batch.token_ids, tokens),
            "positions": StepArray(lambda batch: batch.positions, tokens),
            "taken": StepArray(lambda batch: batch.logits_rows, tokens),
        }
        self._size, self._most_entries = size, entries
        self._options = options

    def add(self, name: Hashable, array: StepArray) -> None:
        """An array that an op reads; the same name is the same array."""
        self._arrays.setdefault(name, array)

    def add_tables(self, group: int) -> None:
        """The block tables of a group of layers, `("tables", group)` [R, entries], and the slots of
        the tokens' K and V, `("slots", group)` [T]."""
        options = self._options

        def tables(batch: StepBatch) -> Integers:
            return batch.block_tables[:, group, : -(-most_context(batch) // self._size)]

        self.add(("tables", group), StepArray(tables, options.max_num_seqs * self._most_entries))
        slots = StepArray(lambda batch: slots_of(batch, group, self._size), options.max_num_tokens)
        self.add(("slots", group), slots)

    @property
    def num_bytes(self) -> int:
        """The most bytes of a step's arrays."""
        return 4 * sum(_padded(array.most) for array in self._arrays.values())

    def step(self, batch: StepBatch, memory: Memory, first: int) -> tuple[Step, Integers]:
        """A step, whose arrays begin at byte `first` of a memory, and all of its integers."""
        made = {name: array.make(batch) for name, array in self._arrays.items()}
        sizes = [_padded(one.size) for one in made.values()]
        whole = np.zeros(sum(sizes), np.int32)
        buffers, begin = {}, 0
        for (name, one), size in zip(made.items(), sizes, strict=True):
            whole[begin : begin + one.size] = one.reshape(-1)
            buffers[name] = memory.part(first + 4 * begin, 4 * size)
            begin += size
        return Step(batch, buffers, {name: one.shape for name, one in made.items()}), whole


@dataclass(slots=True)
class PaddedBatch(StepBatch):
    """A step with requests for padding, so that steps of several sizes have the same launches."""

    most_context: int = 0
    """The longest context that launches are made for."""


def most_context(batch: StepBatch) -> int:
    """The tokens of the longest request, or the context that launches are made for."""
    if isinstance(batch, PaddedBatch):
        return batch.most_context
    return int(batch.context_lens.max(initial=1))


def slots_of(batch: StepBatch, group: int, block_size: int) -> Integers:
    """For each token, block * block_size + place, where its K and V are written."""
    requests = requests_of(batch)
    blocks = batch.block_tables[requests, group, batch.positions // block_size]
    slots: Integers = blocks * np.int32(block_size) + batch.positions % block_size
    return slots


def requests_of(batch: StepBatch) -> NDArray[np.intp]:
    """The request of each token."""
    return np.repeat(np.arange(len(batch.context_lens)), np.diff(batch.seq_starts))


def _padded(count: int) -> int:
    return -(-max(count, 1) // _UNIT) * _UNIT
