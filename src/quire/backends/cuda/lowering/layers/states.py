"""The places of recurrent layers' states, and the requests of a step."""

from __future__ import annotations

import numpy as np

from quire.backends.base import StepBatch
from quire.backends.cuda.kernel import Arguments
from quire.backends.cuda.lowering.context import Lowering
from quire.backends.cuda.step import Integers, Step, StepArray, requests_of
from quire.config.state_groups import StateGroup

STATE_TYPES = (
    ("cache", "*fp32"), ("tables", "*i32"), ("entries", "*i32"), ("begins", "*i32"),
    ("requests", "*i32"),
)  # fmt: skip
"""The arguments of kernels that say where states are; `table_width` and `stride_block` too."""
_UNIT_BYTES = 64
"""Pieces begin at multiples of it."""


class States:
    """The states of one layer."""

    def __init__(self, layer: int, lowering: Lowering) -> None:
        place = lowering.kv.layout.places()[layer]
        group = lowering.kv.layout.groups[place.group]
        if not isinstance(group, StateGroup):
            lowering.refuse("recurrent layer without a state")
        pieces = group.offsets(lowering.block_bytes)[layer]
        self.num_pieces = len(pieces)
        self._entries = lowering.numbers(np.array([entry for entry, _ in pieces], np.int32))
        units = [begin // _UNIT_BYTES for _, begin in pieces]
        self._begins = lowering.numbers(np.array(units, np.int32))
        self._cache = lowering.cache_from(0)
        self._stride = lowering.block_bytes // 4
        self._table = ("state tables", place.group)
        options, count, index = lowering.options, group.num_blocks, place.group

        def tables(batch: StepBatch) -> Integers:
            return batch.block_tables[:, index, :count]

        lowering.arrays.add(self._table, StepArray(tables, options.max_num_seqs * count))
        lowering.arrays.add("requests", StepArray(_requests, 4 * options.max_num_seqs))
        lowering.arrays.add("request of token", StepArray(_request_of, options.max_num_tokens))

    def arguments(self, step: Step) -> Arguments:
        """The addresses of `STATE_TYPES`, and the sizes that belong to them."""
        return {
            "cache": self._cache, "tables": step.buffers[self._table], "entries": self._entries,
            "begins": self._begins, "requests": step.buffers["requests"],
            "table_width": step.shapes[self._table][1], "stride_block": self._stride,
        }  # fmt: skip


def _requests(batch: StepBatch) -> Integers:
    """[R, 4]: the first row, the end of the rows, the first row's position, and 0."""
    begins, ends = batch.seq_starts[:-1], batch.seq_starts[1:]
    positions = batch.context_lens - (ends - begins)
    return np.stack([begins, ends, positions, np.zeros_like(begins)], axis=1).astype(np.int32)


def _request_of(batch: StepBatch) -> Integers:
    return requests_of(batch).astype(np.int32)
