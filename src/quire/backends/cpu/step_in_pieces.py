"""`CpuStepInPieces`: computes the step of an encoder for a few rows at a time.

`lowering/stages.py` divides the ops into stages. A piece is one stage for some adjacent rows: first
its attention, for which these rows count as the last of the request, so that they see K and V of
all rows; then its other ops, in which the rows have their own positions. The native model gets the
ops of a piece by `quire_set_ops`. Values that the next stage reads stay in the workspace.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import StepBatch, StepInPieces, StepOutput, TokenRows
from quire.errors import BackendError
from quire.units import ceil_div

if TYPE_CHECKING:
    from quire.backends.cpu.encode import Encoded
    from quire.backends.cpu.lowering import Pieces

_FEWEST_ROWS = 8
"""A piece of fewer rows would read all weights of a layer for little work."""

Prepare = Callable[[StepBatch], Any]
"""Gives a batch as the native library reads it, which refers to the batch's arrays."""
RunOps = Callable[[Any, int, Any, Any], None]
"""Runs some ops over a prepared batch: the first record, their number, the batch, where results
go."""


@dataclass(frozen=True, slots=True)
class PieceTime:
    """Time that a piece took."""

    row_seconds: float
    num_rows: int
    """Number of rows of the whole step."""

    def of_row(self, num_rows: int) -> float:
        """Seconds of a row, at most, in a step of so many rows: attention to more takes longer."""
        return self.row_seconds * max(1.0, num_rows / self.num_rows)


@dataclass(frozen=True, slots=True)
class PieceOps:
    """The ops of a model whose steps are computed in pieces."""

    pieces: Pieces
    encoded: Encoded
    block_size: int
    result_width: int
    times: dict[tuple[bool, bool], PieceTime] = field(default_factory=dict)
    """Time of the last piece of each kind of stage. Kept from step to step."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Some adjacent rows, prepared once for all stages of a kind that have a piece of them."""

    attention: Any
    """The rows as the last of the request."""
    others: Any
    """The rows at their own positions."""
    result: NDArray[np.float32]


class CpuStepInPieces(StepInPieces):
    """One step. `run` calls the native library."""

    def __init__(self, ops: PieceOps, batch: StepBatch, prepare: Prepare, run: RunOps) -> None:
        """Raises BackendError unless the batch is one whole request with rows."""
        count = len(batch.token_ids)
        if batch.context_lens.tolist() != [count] or not count:
            raise BackendError("a step in pieces must have all tokens of one request")
        self._ops, self._batch, self._prepare, self._run = ops, batch, prepare, run
        self._rows: dict[tuple[int, int, bool], _Rows] = {}
        self._tables = np.arange(ceil_div(count, ops.block_size), dtype=np.int32)[None, None]
        self._stage = self._row = 0
        self._vectors = np.empty((len(batch.logits_rows), ops.result_width), np.float32)

    def advance(self, seconds: float) -> StepOutput | None:
        """Chooses pieces by the time that the last one has taken."""
        end, count = time.perf_counter() + seconds, len(self._batch.token_ids)
        while self._stage < len(self._ops.pieces.stages):
            begin = time.perf_counter()
            kind, last_row = self._kind, self._end_of_piece(self._fitting(end - begin))
            num_rows = last_row - self._row
            self._compute(self._row, last_row)
            row_seconds = (time.perf_counter() - begin) / num_rows
            self._ops.times[kind] = PieceTime(row_seconds, count)
            self._row = last_row
            if self._row == count:
                self._stage, self._row = self._stage + 1, 0
            if self._is_done:
                break
            if time.perf_counter() + _FEWEST_ROWS * self._row_seconds() > end:
                return None
        return StepOutput(np.empty(0, np.int32), vectors=self._vectors)

    def _fitting(self, seconds: float) -> int:
        """Rows that can be computed in this time."""
        if math.isinf(seconds):
            return self._ops.pieces.max_rows
        row_seconds = self._row_seconds()
        return max(_FEWEST_ROWS, int(seconds / row_seconds) if row_seconds else 0)

    def _row_seconds(self) -> float:
        """The time that a row of this stage will take; 0: it is not known."""
        time_of_piece = self._ops.times.get(self._kind)
        return 0.0 if time_of_piece is None else time_of_piece.of_row(len(self._batch.token_ids))

    @property
    def _is_done(self) -> bool:
        return self._stage == len(self._ops.pieces.stages)

    @property
    def _kind(self) -> tuple[bool, bool]:
        """Stages of one kind take the same time for a row."""
        return self._stage > 0, self._ops.pieces.spans[self._stage]

    def _end_of_piece(self, num_rows: int) -> int:
        """The row after a piece of at most about so many rows, from the current one on. Spans are
        not divided where attention sees spans alone."""
        count, most = len(self._batch.token_ids), self._ops.pieces.max_rows
        spans = self._batch.spans if self._ops.pieces.spans[self._stage] else None
        end = min(self._row + min(num_rows, most), count)
        if spans is None or end == count:
            return end
        if spans[1, end - 1] >= end:  # the piece ends within a span
            first, last = int(spans[0, end - 1]), int(spans[1, end - 1]) + 1
            end = last if last - self._row <= most else first
        if end <= self._row:
            raise BackendError(f"a span must have at most {most} rows, the most of a piece")
        return end

    def _compute(self, begin: int, end: int) -> None:
        """One stage for the rows from `begin` to `end`."""
        stage, encoded = self._ops.pieces.stages[self._stage], self._ops.encoded
        for index in stage:
            for view in encoded.lasting[index]:
                view.begin_at(begin)
        spans = self._ops.pieces.spans[self._stage]
        rows = self._rows.get((begin, end, spans))
        if rows is None:
            rows = self._rows[begin, end, spans] = self._prepared(begin, end, spans)
        others = stage
        if self._stage:
            self._run(encoded.records + stage.start, 1, rows.attention, None)
            others = stage[1:]
        self._run(encoded.records + others.start, len(others), rows.others, rows.result)

    def _prepared(self, begin: int, end: int, spans: bool) -> _Rows:
        first, last = np.searchsorted(self._batch.logits_rows, [begin, end])
        own = self._part(begin, end, self._batch.logits_rows[first:last] - begin, spans)
        attention = own if spans else _at_the_end(own, len(self._batch.token_ids))
        others = self._prepare(replace(own, spans=None))
        return _Rows(self._prepare(attention), others, self._vectors[first:last])

    def _part(self, begin: int, end: int, taken: NDArray[np.int32], with_spans: bool) -> StepBatch:
        """The rows from `begin` to `end` as the last ones of a request that has none after them."""
        batch, axes, spans = self._batch, self._batch.axis_positions, self._batch.spans
        return StepBatch(
            token_ids=batch.token_ids[begin:end],
            positions=np.arange(begin, end, dtype=np.int32),
            seq_starts=np.array([0, end - begin], np.int32),
            context_lens=np.array([end], np.int32),
            block_tables=self._tables,
            logits_rows=taken,
            sampling=None,
            axis_positions=None if axes is None else axes[begin:end],
            spans=spans[:, begin:end] if spans is not None and with_spans else None,
            input_rows=_cut(batch.input_rows, begin, end),
        )


def _at_the_end(part: StepBatch, count: int) -> StepBatch:
    """The same rows as the last of all `count` rows."""
    num_rows = len(part.token_ids)
    return replace(
        part,
        positions=np.arange(count - num_rows, count, dtype=np.int32),
        context_lens=np.array([count], np.int32),
        axis_positions=None,
    )


def _cut(given: list[TokenRows], begin: int, end: int) -> list[TokenRows]:
    """The given rows of the tokens from `begin` to `end`."""
    found = []
    for one in given:
        first, last = max(one.first, begin), min(one.first + len(one.rows), end)
        if first < last:
            found.append(TokenRows(first - begin, one.rows[first - one.first : last - one.first]))
    return found
