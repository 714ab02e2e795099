"""Attention of layers that keep nothing from step to step: a request is computed in one step.

K and V of the step's tokens are put into memory of the step that has the form of a KV cache, so
that the kernels are those of attention with a cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from quire.backends.base import StepBatch
from quire.backends.cuda.kernel import ARRAY_TYPES, Action
from quire.backends.cuda.lowering.attention import Attend
from quire.backends.cuda.lowering.context import Emit, LayerPlace, Lowering
from quire.backends.cuda.step import Integers, Step, StepArray, requests_of
from quire.backends.paged_kv_cache import SlotArray
from quire.errors import BackendError
from quire.program import Attention

_PAGE = 16
_GROUP = -1
"""Number of the group whose tables and slots are those of the step's own tokens."""


def lower_uncached_attention(op: Attention, lowering: Lowering) -> Emit:
    """Writes K and V of the step, and attends."""
    if op.k is None or op.v is None:
        lowering.refuse("attention without a KV cache that writes no K and V")
    attend, k, v = _AttendStep(op, lowering), lowering.rows[op.k], lowering.rows[op.v]

    def emit(step: Step) -> Iterator[Action]:
        if np.any(_counts(step.batch) != step.batch.context_lens):
            raise BackendError("attention without a cache needs all tokens of a request in a step")
        yield attend.write(step, k, v, 0, step.num_tokens)
        yield from attend.attend(step)

    return emit


class _AttendStep(Attend):
    """The launches of one op. Numbers in memory have the model's dtype."""

    def __init__(self, op: Attention, lowering: Lowering) -> None:
        kind, item = ARRAY_TYPES[lowering.type_name], lowering.item
        k_width = op.num_kv_heads * op.head_dim
        v_width = op.num_kv_heads * (op.value_dim or op.head_dim)
        options = lowering.options
        most_rows = options.max_num_tokens + _PAGE * options.max_num_seqs
        place = LayerPlace(
            group=_GROUP,
            k=SlotArray(0, kind, k_width),
            v=SlotArray(_PAGE * k_width * item, kind, v_width),
            scales=None,
            block_bytes=_PAGE * (k_width + v_width) * item,
        )
        super().__init__(op, lowering, place, lowering.type_name)
        self._page = _PAGE
        rows = lowering.shared("K and V of a step", most_rows * (k_width + v_width) * item)
        self._k, self._v = rows, rows.from_byte(place.v.begin)
        entries = -(-min(options.max_model_len, options.max_num_tokens) // _PAGE) + 1
        tables = StepArray(_tables, options.max_num_seqs * entries)
        lowering.arrays.add(("tables", _GROUP), tables)
        lowering.arrays.add(("slots", _GROUP), StepArray(_slots, options.max_num_tokens))


def _counts(batch: StepBatch) -> Integers:
    """Tokens of each request in the step; of requests without any, those that it has."""
    counts = np.diff(batch.seq_starts)
    return np.where(counts, counts, batch.context_lens).astype(np.int32)


def _begins(batch: StepBatch) -> Integers:
    """[R + 1]: the first page of each request, and the number of pages."""
    pages = -(-np.diff(batch.seq_starts) // _PAGE)
    return np.concatenate([[0], np.cumsum(pages)]).astype(np.int32)


def _tables(batch: StepBatch) -> Integers:
    width = -(-int(np.diff(batch.seq_starts).max(initial=1)) // _PAGE)
    pages = _begins(batch)[:-1, None] + np.arange(width, dtype=np.int32)
    return pages.astype(np.int32)


def _slots(batch: StepBatch) -> Integers:
    requests = requests_of(batch)
    places = np.arange(len(requests), dtype=np.int32) - batch.seq_starts[requests]
    slots: Integers = _begins(batch)[requests] * np.int32(_PAGE) + places
    return slots
