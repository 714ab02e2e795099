"""`Drafter`: proposes the next tokens of requests with a draft model, greedily.

Called by `ModelRunner` after each step. The draft model computes the tokens that the target has
computed, so that the blocks of a prefix have the K/V of both. Within a block it may lag behind: a
block is computed with its last token, or when tokens are to be proposed. So a request whose text
cannot be guessed takes one step of the draft model for each block. What it proposes cannot change
a reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import StepBatch, StepModel
from quire.protocol import SchedulePlan, StepResult
from quire.sampling.columns import SamplingColumns
from quire.worker.input_batch import InputBatch, PreparedStep

Ints = NDArray[np.int32]


@dataclass(slots=True)
class _Text:
    """The tokens of a request, and how many of them the draft model has computed."""

    token_ids: list[int]
    num_done: int


@dataclass(slots=True)
class _Piece:
    """Tokens of a request for the draft model."""

    row: int
    first: int
    """Position of the first of them."""
    token_ids: list[int]
    num_wanted: int = 0
    """How many tokens are to be proposed after them."""


class Drafter:
    """Owned by the worker's thread."""

    def __init__(
        self,
        batch: InputBatch,
        group: int,
        block_size: int,
        max_tokens: int,
        max_num_tokens: int,
    ) -> None:
        """`group`: the layer group whose block tables the draft model uses. `max_tokens`: the
        longest text that it can read. `max_num_tokens`: most tokens of a step."""
        self._batch = batch
        self._group = group
        self._block_size = block_size
        self._max_tokens = max_tokens
        self._max_num_tokens = max_num_tokens
        self._texts: dict[int, _Text] = {}
        """By row."""

    def begin(self, plan: SchedulePlan) -> None:
        """Takes in the requests that a plan starts."""
        for request_id, request in plan.started.items():
            text = _Text(request.token_ids.copy(), request.num_computed_tokens)
            self._texts[self._batch.row_of[request_id]] = text

    def propose(
        self, model: StepModel, plan: SchedulePlan, step: PreparedStep, result: StepResult
    ) -> dict[str, list[int]]:
        """Computes what the target has computed in a step, and what it proposes after it. Raises
        BackendError."""
        asking: dict[str, _Piece] = {}
        pieces: list[_Piece] = []
        for request_id, row, end, sampled in zip(
            plan.request_ids,
            step.rows.tolist(),
            step.ends.tolist(),
            result.sampled_token_ids,
            strict=True,
        ):
            text = self._texts[row]
            text.token_ids += sampled
            num_wanted = plan.num_next_drafts.get(request_id, 0) if sampled else 0
            num_wanted = min(num_wanted, self._max_tokens - len(text.token_ids))
            piece = self._piece(row, text, len(text.token_ids) - 1 if sampled else end, num_wanted)
            if piece is not None:
                pieces.append(piece)
                if piece.num_wanted:
                    asking[request_id] = piece
        chosen = self._compute(model, pieces)
        found = {name: [chosen[piece.row]] for name, piece in asking.items()}
        self._draft_on(model, asking, found)
        return {name: ids for name, ids in found.items() if ids[0] >= 0}

    def _piece(self, row: int, text: _Text, num_computed: int, num_wanted: int) -> _Piece | None:
        """What the draft model computes now for a request of which the target has computed
        `num_computed` tokens; None: nothing."""
        size = self._block_size
        end = num_computed
        if num_wanted > 0:
            end = len(text.token_ids)
        elif num_computed // size <= text.num_done // size:
            return None
        end = min(end, self._max_tokens)
        if end <= text.num_done:
            return None
        first, text.num_done = text.num_done, end
        return _Piece(row, first, text.token_ids[first:end], max(0, num_wanted))

    def _compute(self, model: StepModel, pieces: Sequence[_Piece]) -> dict[int, int]:
        """Computes pieces of any size, in as many steps as they need. Returns by row the token
        after each piece that wants one; -1: the model gave none."""
        found: dict[int, int] = {}
        step: list[_Piece] = []
        room = self._max_num_tokens
        for piece in pieces:
            first, token_ids = piece.first, piece.token_ids
            while len(token_ids) > room:
                if room:
                    step.append(_Piece(piece.row, first, token_ids[:room]))
                    first, token_ids = first + room, token_ids[room:]
                found |= self._step(model, step)
                step, room = [], self._max_num_tokens
            step.append(_Piece(piece.row, first, token_ids, piece.num_wanted))
            room -= len(token_ids)
        if step:
            found |= self._step(model, step)
        return found

    def _draft_on(
        self, model: StepModel, asking: dict[str, _Piece], found: dict[str, list[int]]
    ) -> None:
        """Adds further tokens to `found`, one of each request in a step."""
        for depth in range(1, max((one.num_wanted for one in asking.values()), default=0)):
            more = {
                name: _Piece(
                    piece.row,
                    piece.first + len(piece.token_ids) + depth - 1,
                    [found[name][-1]],
                    1,
                )
                for name, piece in asking.items()
                if piece.num_wanted > depth and len(found[name]) == depth and found[name][-1] >= 0
            }
            if not more:
                return
            chosen = self._step(model, [*more.values()])
            for name, piece in more.items():
                if chosen[piece.row] >= 0:
                    found[name].append(chosen[piece.row])

    def _step(self, model: StepModel, pieces: Sequence[_Piece]) -> dict[int, int]:
        """One step of the draft model. Returns as `_compute` does."""
        counts = [len(piece.token_ids) for piece in pieces]
        starts = np.zeros(len(pieces) + 1, np.int32)
        np.cumsum(counts, out=starts[1:])
        firsts = np.array([piece.first for piece in pieces], np.int32)
        positions = np.repeat(firsts - starts[:-1], counts).astype(np.int32)
        positions += np.arange(starts[-1], dtype=np.int32)
        asking = [index for index, piece in enumerate(pieces) if piece.num_wanted]
        rows = np.array([piece.row for piece in pieces], np.intp)
        output = model.step(
            StepBatch(
                token_ids=np.concatenate([np.array(one.token_ids, np.int32) for one in pieces]),
                positions=positions,
                seq_starts=starts,
                context_lens=(firsts + np.array(counts, np.int32)).astype(np.int32),
                block_tables=self._batch.tables_of(rows, self._group),
                logits_rows=(starts[1:][asking] - 1).astype(np.int32),
                sampling=_greedy(len(asking)) if asking else None,
            )
        )
        sampled = output.sampled
        if output.not_finite is not None:
            sampled = np.where(output.not_finite, np.int32(-1), sampled)
        return {pieces[i].row: int(one) for i, one in zip(asking, sampled, strict=True)}


def _greedy(num_rows: int) -> SamplingColumns:
    """Sampling columns that choose the most likely token of each row."""
    zeros = np.zeros(num_rows, np.uint64)
    return SamplingColumns(temperature=np.zeros(num_rows, np.float32), seeds=zeros, counters=zeros)
