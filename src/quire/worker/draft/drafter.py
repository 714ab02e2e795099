"""`Drafter`: proposes the next tokens of requests with a draft model or a head, greedily.

Called by `ModelRunner` after each step. The draft model computes the tokens that the target has
computed, so that the blocks of a prefix have the K/V of both. Within a block it may be late: a
block is computed with its last token, or when tokens are to be proposed. So a request whose text
cannot be guessed takes one step of the draft model for each block. What it proposes cannot change
a reply.

A head reads at position p the token of position p + 1, and the hidden state of the target at p. So
it computes one position less, and keeps the hidden states of positions that it has not computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quire.backends.records import StepBatch, StepOutput
from quire.protocol import SchedulePlan, StepResult
from quire.sampling.columns import SamplingColumns
from quire.worker.draft.pair import DraftModel
from quire.worker.input_batch import InputBatch, PreparedStep

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
_NO_ROWS = np.empty((0, 0), np.float32)


@dataclass(slots=True)
class _Text:
    """The tokens of a request, and how many positions the draft model has computed."""

    token_ids: list[int]
    num_done: int
    hidden: Floats = field(default_factory=lambda: _NO_ROWS)
    """The target's hidden states from position `num_done` on, for a head."""

    def add_hidden(self, rows: Floats) -> None:
        """Adds those of the next positions."""
        self.hidden = np.concatenate([self.hidden, rows]) if len(self.hidden) else rows.copy()


@dataclass(slots=True)
class _Piece:
    """Tokens of a request for the draft model."""

    row: int
    first: int
    """Position of the first of them."""
    token_ids: list[int]
    num_wanted: int = 0
    """Number of tokens to propose after them."""
    hidden: Floats = field(default_factory=lambda: _NO_ROWS)
    """[number of tokens, W]; what a head reads with them."""

    def split(self, count: int) -> tuple[_Piece, _Piece]:
        """Its first `count` tokens, and the others."""
        one = _Piece(self.row, self.first, self.token_ids[:count], 0, self.hidden[:count])
        other = _Piece(
            self.row, self.first + count, self.token_ids[count:], self.num_wanted,
            self.hidden[count:],
        )  # fmt: skip
        return one, other


@dataclass(slots=True)
class _Next:
    """Result of the draft model after a piece."""

    token_id: int
    """-1: none."""
    hidden: Floats
    """[1, W]; a head's hidden state."""


class Drafter:
    """Owned by the worker's thread."""

    def __init__(self, batch: InputBatch, group: int, block_size: int, max_tokens: int) -> None:
        """`group`: the layer group whose block tables the draft model uses. `max_tokens`: the
        longest text that it can read."""
        self._batch = batch
        self._group = group
        self._block_size = block_size
        self._max_tokens = max_tokens
        self._texts: dict[int, _Text] = {}
        """By row."""

    def begin(self, plan: SchedulePlan) -> None:
        """Takes in the requests that a plan starts."""
        for request_id, request in plan.started.items():
            text = _Text(request.token_ids.copy(), request.num_computed_tokens)
            self._texts[self._batch.row_of[request_id]] = text

    def propose(
        self,
        draft: DraftModel,
        plan: SchedulePlan,
        step: PreparedStep,
        result: StepResult,
        hidden: Floats | None,
    ) -> dict[str, list[int]]:
        """Computes what the target has computed in a step, and what it proposes after it. `hidden`
        [T, W]: the target's hidden states, for a head. Raises BackendError."""
        asking: dict[str, _Piece] = {}
        pieces: list[_Piece] = []
        starts, positions = step.batch.seq_starts.tolist(), step.batch.positions
        for index, (request_id, row, end, sampled) in enumerate(
            zip(
                plan.request_ids,
                step.rows.tolist(),
                step.ends.tolist(),
                result.sampled_token_ids,
                strict=True,
            )
        ):
            text = self._texts[row]
            text.token_ids += sampled
            num_computed = len(text.token_ids) - 1 if sampled else end
            if hidden is not None and draft.head is not None:
                count = num_computed - int(positions[starts[index]])
                text.add_hidden(hidden[starts[index] : starts[index] + count])
            num_wanted = plan.num_next_drafts.get(request_id, 0) if sampled else 0
            num_wanted = min(num_wanted, self._max_tokens - len(text.token_ids))
            piece = self._piece(draft, row, text, num_computed, num_wanted)
            if piece is not None:
                pieces.append(piece)
                if piece.num_wanted:
                    asking[request_id] = piece
        chosen = self._compute(draft, pieces)
        found = {name: [chosen[piece.row]] for name, piece in asking.items()}
        self._draft_on(draft, asking, found)
        drafts = {name: [one.token_id for one in given] for name, given in found.items()}
        return {name: ids for name, ids in drafts.items() if ids[0] >= 0}

    def _piece(
        self, draft: DraftModel, row: int, text: _Text, num_computed: int, num_wanted: int
    ) -> _Piece | None:
        """Tokens that the draft model computes now for a request of which the target has computed
        `num_computed` tokens; None: nothing."""
        size, ahead = self._block_size, 0 if draft.head is None else 1
        known = len(text.token_ids) - ahead
        end = min(num_computed, known)
        if num_wanted > 0:
            end = known
        elif end // size <= text.num_done // size:
            return None
        end = min(end, self._max_tokens)
        if end <= text.num_done:
            return None
        first, text.num_done = text.num_done, end
        piece = _Piece(row, first, text.token_ids[first + ahead : end + ahead], max(0, num_wanted))
        if draft.head is not None:
            piece.hidden = draft.head.of_target(text.hidden[: end - first])
            text.hidden = text.hidden[end - first :]
        return piece

    def _compute(self, draft: DraftModel, pieces: Sequence[_Piece]) -> dict[int, _Next]:
        """Computes pieces of any size, in as many steps as they need. Returns by row what comes
        after each piece that wants a token."""
        found: dict[int, _Next] = {}
        step: list[_Piece] = []
        room = draft.max_num_tokens
        for piece in pieces:
            rest = piece
            while len(rest.token_ids) > room:
                if room:
                    begin, rest = rest.split(room)
                    step.append(begin)
                found |= self._step(draft, step)
                step, room = [], draft.max_num_tokens
            step.append(rest)
            room -= len(rest.token_ids)
        if step:
            found |= self._step(draft, step)
        return found

    def _draft_on(
        self, draft: DraftModel, asking: dict[str, _Piece], found: dict[str, list[_Next]]
    ) -> None:
        """Adds further tokens to `found`, one of each request in a step."""
        for depth in range(1, max((one.num_wanted for one in asking.values()), default=0)):
            more: dict[str, _Piece] = {}
            for name, piece in asking.items():
                last = found[name][-1]
                if piece.num_wanted <= depth or len(found[name]) != depth or last.token_id < 0:
                    continue
                first = piece.first + len(piece.token_ids) + depth - 1
                more[name] = _Piece(piece.row, first, [last.token_id], 1)
                if draft.head is not None:
                    more[name].hidden = draft.head.of_head(last.hidden)
            if not more:
                return
            chosen = self._step(draft, [*more.values()])
            for name, piece in more.items():
                if chosen[piece.row].token_id >= 0:
                    found[name].append(chosen[piece.row])

    def _step(self, draft: DraftModel, pieces: Sequence[_Piece]) -> dict[int, _Next]:
        """One step of the draft model. Returns as `_compute` does."""
        counts = [len(piece.token_ids) for piece in pieces]
        starts = np.zeros(len(pieces) + 1, np.int32)
        np.cumsum(counts, out=starts[1:])
        firsts = np.array([piece.first for piece in pieces], np.int32)
        positions = np.repeat(firsts - starts[:-1], counts).astype(np.int32)
        positions += np.arange(starts[-1], dtype=np.int32)
        asking = [index for index, piece in enumerate(pieces) if piece.num_wanted]
        rows = np.array([piece.row for piece in pieces], np.intp)
        samples = asking and (draft.head is None or draft.head.tokens is None)
        output = draft.step(
            StepBatch(
                token_ids=np.concatenate([np.array(one.token_ids, np.int32) for one in pieces]),
                positions=positions,
                seq_starts=starts,
                context_lens=(firsts + np.array(counts, np.int32)).astype(np.int32),
                block_tables=self._batch.tables_of(rows, self._group),
                logits_rows=(starts[1:][asking] - 1).astype(np.int32),
                sampling=_greedy(len(asking)) if samples else None,
                rows_in=None if draft.head is None else np.concatenate([p.hidden for p in pieces]),
            )
        )
        chosen = _chosen(draft, output).tolist() if asking else []
        hidden = _NO_ROWS if output.rows_out is None else output.rows_out
        return {
            pieces[index].row: _Next(token_id, hidden[place : place + 1])
            for place, (index, token_id) in enumerate(zip(asking, chosen, strict=True))
        }


def _chosen(draft: DraftModel, output: StepOutput) -> Ints:
    """The most likely token of each row; -1: the row is not finite."""
    chosen, not_finite = output.sampled, output.not_finite
    if output.vectors is not None:
        chosen = output.vectors.argmax(axis=1).astype(np.int32)
        not_finite = np.logical_not(np.isfinite(output.vectors).all(axis=1))
        if draft.head is not None and draft.head.tokens is not None:
            chosen = draft.head.tokens[chosen]
    return chosen if not_finite is None else np.where(not_finite, np.int32(-1), chosen)


def _greedy(num_rows: int) -> SamplingColumns:
    """Sampling columns that choose the most likely token of each row."""
    zeros = np.zeros(num_rows, np.uint64)
    return SamplingColumns(temperature=np.zeros(num_rows, np.float32), seeds=zeros, counters=zeros)
