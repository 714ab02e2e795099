"""Which positions each token sees, and the blocks of queries: computed by the host for each step.

So windows, chunks of positions, spans and encoders' sources need nothing in the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.backends.base import StepBatch
from quire.backends.cuda.step import Integers
from quire.program import Attention

FIELDS = 8
"""Integers of a block of queries, as in `kernels/attention.py`."""


@dataclass(frozen=True, slots=True)
class View:
    """The rule by which tokens see positions, which some attention ops of a program have in
    common."""

    window: int | None
    is_chunked: bool
    is_causal: bool
    spans: bool
    first_key: int
    num_keys: int

    @classmethod
    def of(cls, op: Attention) -> View:
        """The rule of an op."""
        return cls(op.window, op.is_chunked, op.is_causal, op.spans, op.first_key, op.num_keys)

    def visible(self, batch: StepBatch) -> Integers:
        """[3, T]: the first and the last position that each token sees, and its own."""
        position = batch.positions
        length = np.repeat(batch.context_lens, np.diff(batch.seq_starts))
        if self.window is None:
            first = np.full_like(position, self.first_key)
        elif self.is_chunked:
            first = position // self.window * self.window
        else:
            first = np.maximum(0, position - self.window + 1)
        if self.num_keys:
            last = np.minimum(position, self.num_keys - 1)
        elif self.is_causal:
            last = position
        else:
            reach = length if self.window is None else position + self.window
            last = np.minimum(length, reach) - 1
        if self.spans:
            first, last = self._with_spans(batch, first, last)
        return np.stack([first, last, position]).astype(np.int32)

    def _with_spans(
        self, batch: StepBatch, first: Integers, last: Integers
    ) -> tuple[Integers, Integers]:
        """A token without a span is one."""
        span_first, span_last = (
            (batch.positions, batch.positions) if batch.spans is None else batch.spans
        )
        if not self.is_causal:
            return span_first, span_last
        return np.minimum(first, span_first), np.maximum(last, span_last)


def query_blocks(batch: StepBatch, visible: Integers, group: int, height: int) -> Integers:
    """[blocks, FIELDS]: the rows of each request, which has `group` of them for a token, in blocks
    of `height`."""
    rows = np.diff(batch.seq_starts) * group
    counts = -(-rows // height)
    request = np.repeat(np.arange(len(rows)), counts)
    ends = np.cumsum(counts)
    first_row = (np.arange(len(request)) - np.repeat(ends - counts, counts)) * height
    begin, num_rows = batch.seq_starts[:-1][request], rows[request]
    end_row = np.minimum(first_row + height, num_rows)
    lowest = visible[0, begin + first_row // group]
    highest = visible[1, begin + (end_row - 1) // group]
    zeros = np.zeros_like(request)
    fields = [request, begin, first_row, num_rows, lowest, highest, zeros, zeros]
    return np.stack(fields, axis=1).astype(np.int32).reshape(-1, FIELDS)


def most_query_blocks(num_tokens: int, num_requests: int, group: int, height: int) -> int:
    """The most blocks of queries of a step."""
    return -(-num_tokens * group // height) + num_requests
