"""`InputBatch`: every request that the worker holds, as rows of flat arrays that persist.

A step's input is gathered from these rows with a handful of NumPy calls, whatever the number
of requests. Called by `ModelRunner`. Knows plans and rows; nothing of models.

Legend: T tokens in the step, R requests of the step, G groups of layers, B entries of a block
table, L rows that need logits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import StepBatch
from quire.config.records import LogprobsMode
from quire.errors import IntegrityError
from quire.protocol import ScheduledRequest, SchedulePlan
from quire.worker.prompt_logprobs import PromptLogprobRows, PromptRows
from quire.worker.sampling_rows import Drafts, Rows, SamplingRows

Ints = NDArray[np.int32]

_UNSEEN = -1
"""No block: in entries that no token will see, so that a backend refuses to read them."""


@dataclass(slots=True)
class PreparedStep:
    """A step's input, and what is needed to take its output in."""

    batch: StepBatch
    rows: Rows
    """[R]; each request's row, in the plan's order."""
    ends: Ints
    """[R]; computed tokens after the step."""
    samples: NDArray[np.bool_] | None
    """[R]; whose next token is chosen; None: that of all."""
    sampled_rows: Rows
    """The row of each token that is chosen: of a request with draft tokens once more for each."""
    num_tokens: Ints
    """What the request has before each of those tokens, draft tokens included."""
    prompt_rows: PromptRows | None = None
    """What else needs logits: None, or all of them."""
    drafts: Drafts | None = None

    def keeps(self, sampled: Ints, is_void: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        """[L]; which of the chosen tokens [L] count: those before which every draft token is what
        was chosen in its place. None: all of them. `is_void` [L]: places whose logits gave no
        token; the first of a request counts all the same, and ends it."""
        if self.drafts is None:
            return None
        kept = np.ones(len(sampled), np.bool_)
        for place in np.flatnonzero(self.drafts.offsets).tolist():
            guess = self.drafts.token_ids[int(self.sampled_rows[place])]
            agrees = sampled[place - 1] == guess[self.drafts.offsets[place] - 1]
            kept[place] = kept[place - 1] and agrees and not is_void[place]
        return kept


@dataclass(frozen=True, slots=True)
class _PlanRows:
    """The rows of a plan's requests, in its order."""

    request_ids: list[str]
    rows: Rows
    """[R]"""
    are_in_order: bool
    """They are 0, 1, 2 and so on."""


_NO_ROWS = _PlanRows([], np.empty(0, np.intp), are_in_order=True)


@dataclass(frozen=True, slots=True)
class _ForcedTokens:
    """The last token that a step chose for a row, and those that its grammar put behind it: all
    that is left to compute when they come."""

    first: int
    """Position of the first of them."""
    token_ids: Ints


class InputBatch:
    """One row per request, from its start to its release; free rows are reused.

    Row r knows `known[r]`, the tokens it was started with, and `last_token[r]`, the newest one:
    between those two nothing is ever needed again, but for tokens that a grammar forced. Owned by
    the worker's thread.
    """

    def __init__(
        self,
        max_num_seqs: int,
        num_groups: int,
        max_num_entries: int,
        vocab_size: int,
        logprobs_mode: LogprobsMode = "raw_logprobs",
    ) -> None:
        """`max_num_entries`: the largest B."""
        self.row_of: dict[str, int] = {}
        self.sampling = SamplingRows(max_num_seqs, vocab_size, logprobs_mode)
        self._prompt_logprobs = PromptLogprobRows(vocab_size)
        self._forced: dict[int, _ForcedTokens] = {}
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self._known: list[Ints] = [np.empty(0, np.int32)] * max_num_seqs
        self._block_tables = np.zeros((max_num_seqs, num_groups, max_num_entries), np.int32)
        self._num_entries = np.zeros((max_num_seqs, num_groups), np.int32)
        self._num_tokens = np.zeros(max_num_seqs, np.int32)
        self._num_computed = np.zeros(max_num_seqs, np.int32)
        self._last_token = np.zeros(max_num_seqs, np.int32)
        self._numbers = np.arange(max_num_seqs + 1, dtype=np.int32)
        self._last_plan = _NO_ROWS
        """Good as long as nothing is started or released."""

    def apply(self, plan: SchedulePlan) -> None:
        """Releases, starts and extends rows as the plan says."""
        if plan.released_request_ids or plan.started:
            self._last_plan = _NO_ROWS
        for request_id in plan.released_request_ids:
            row = self.row_of.pop(request_id, None)
            if row is not None:
                self.sampling.clear(row)
                self._prompt_logprobs.clear(row)
                self._forced.pop(row, None)
                self._free_rows.append(row)
        for request in plan.started.values():
            self._start(request)
        for request_id, token_ids in plan.forced_token_ids.items():
            self._append_tokens(self.row_of[request_id], token_ids)
        for request_id, block_ids in plan.new_block_ids.items():
            self._append_blocks(self.row_of[request_id], block_ids)

    def prepare(self, plan: SchedulePlan) -> PreparedStep:
        """The step's input; requests in the plan's order, so that one may read what an earlier
        one of the same step writes."""
        plan_rows = self._rows_of(plan.request_ids)
        rows = plan_rows.rows
        computed, known = self._num_computed[rows], self._num_tokens[rows]
        is_one_each = plan.total_num_scheduled_tokens == len(rows)
        if is_one_each:
            starts = self._numbers[: len(rows) + 1]
            ends = computed + 1
        else:
            starts = np.zeros(len(rows) + 1, np.int32)
            np.cumsum(plan.num_scheduled_tokens, out=starts[1:])
            ends = computed + np.diff(starts)
        draft_ids = {self.row_of[name]: ids for name, ids in plan.draft_token_ids.items()}
        num_drafts = _counts_of(draft_ids, rows) if draft_ids else None
        if num_drafts is not None and (computed[num_drafts > 0] + 1 < known[num_drafts > 0]).any():
            raise IntegrityError("draft tokens follow tokens that are not computed")
        is_complete = ends == (known if num_drafts is None else known + num_drafts)
        all_complete = np.count_nonzero(is_complete) == len(rows)
        if all_complete and is_one_each:
            token_ids, positions, logits_rows = self._last_token[rows], computed, starts[:-1]
        else:
            token_ids = self._gather_tokens(rows, starts, computed, ends, draft_ids)
            positions = np.repeat(computed - starts[:-1], np.diff(starts))
            positions += np.arange(starts[-1], dtype=np.int32)
            logits_rows = starts[1:][is_complete] - 1
        sampled_rows, num_tokens = rows, known
        if not all_complete:
            sampled_rows, num_tokens = rows[is_complete], known[is_complete]
        drafts = None
        if num_drafts is not None:
            counts = 1 + num_drafts[is_complete]
            offsets = _counted(counts)
            logits_rows = np.repeat(logits_rows - counts + 1, counts) + offsets
            sampled_rows = np.repeat(sampled_rows, counts)
            num_tokens = np.repeat(num_tokens, counts) + offsets
            drafts = Drafts(draft_ids, offsets)
        spans = self._prompt_logprobs.spans(rows, starts, computed, ends)
        prompt_rows = PromptRows.merge(spans, logits_rows, sampled_rows) if spans else None
        masks = self._masks(plan) if plan.grammar_bitmask else None
        if prompt_rows is None:
            columns = self.sampling.columns(sampled_rows, num_tokens, masks=masks, drafts=drafts)
        else:
            logits_rows, all_rows = prompt_rows.logits_rows, prompt_rows.rows
            counters, of_all = self._num_tokens[all_rows], drafts
            if drafts is not None:
                counters[prompt_rows.is_new] = num_tokens
                of_all = Drafts(draft_ids, np.zeros(len(all_rows), np.int32))
                of_all.offsets[prompt_rows.is_new] = drafts.offsets
            columns = self.sampling.columns(
                all_rows, counters, prompt_rows.targets, masks=masks, drafts=of_all
            )
            if columns is not None:
                prompt_rows.report(columns)
        batch = StepBatch(
            token_ids=token_ids,
            positions=positions,
            seq_starts=starts,
            context_lens=ends,
            block_tables=self._tables(plan_rows),
            logits_rows=logits_rows,
            sampling=columns,
        )
        samples = None if all_complete else is_complete
        return PreparedStep(
            batch, rows, ends, samples, sampled_rows, num_tokens, prompt_rows, drafts
        )

    def _rows_of(self, request_ids: list[str]) -> _PlanRows:
        """Most steps have the requests of the step before."""
        if request_ids != self._last_plan.request_ids:
            rows = [self.row_of[request_id] for request_id in request_ids]
            are_in_order = rows == list(range(len(rows)))
            self._last_plan = _PlanRows(request_ids, np.array(rows, np.intp), are_in_order)
        return self._last_plan

    def _masks(self, plan: SchedulePlan) -> dict[int, NDArray[np.uint32]]:
        """By row, the tokens that a grammar allows."""
        return {
            self.row_of[request_id]: np.frombuffer(mask, np.uint32)
            for request_id, mask in zip(
                plan.structured_output_request_ids, plan.grammar_bitmask, strict=True
            )
        }

    def begin(self, step: PreparedStep) -> None:
        """Takes in that the step is under way: the next chunk of a prompt may follow."""
        self._num_computed[step.rows] = step.ends

    def known_tokens(self, row: int) -> Ints:
        """The tokens that the request in this row was started with."""
        return self._known[row]

    def advance(
        self, step: PreparedStep, sampled: Ints, kept: NDArray[np.bool_] | None = None
    ) -> None:
        """Takes in that the step is computed; `sampled` [L] are the tokens chosen, of which those
        count that are `kept` [L] (None: all), as `PreparedStep.keeps` says."""
        rows, num_tokens = step.sampled_rows, step.num_tokens
        if kept is None:
            self._last_token[rows] = sampled
            self._num_tokens[rows] = num_tokens + 1
            self.sampling.advance(rows, sampled)
            return
        # One token after the other: the last that counts is the one that stays.
        for place in np.flatnonzero(kept):
            row = rows[place : place + 1]
            self._last_token[row] = sampled[place]
            self._num_tokens[row] = num_tokens[place] + 1
            self.sampling.advance(row, sampled[place : place + 1])
        self._num_computed[rows] = self._num_tokens[rows] - 1

    def _start(self, request: ScheduledRequest) -> None:
        if not self._free_rows:
            raise IntegrityError(f"no free row for request {request.request_id}")
        row = self._free_rows.pop()
        self.row_of[request.request_id] = row
        self._known[row] = np.array(request.token_ids, np.int32)
        self._num_tokens[row] = len(request.token_ids)
        self._num_computed[row] = request.num_computed_tokens
        self._last_token[row] = request.token_ids[-1]
        for group, (first, block_ids) in enumerate(
            zip(request.first_entries, request.block_ids, strict=True)
        ):
            end = first + len(block_ids)
            table = self._block_tables[row, group]
            table[:first] = _UNSEEN
            table[first:end] = block_ids
            self._num_entries[row, group] = end
        self.sampling.set(row, request)
        self._prompt_logprobs.set(row, request)

    def _append_tokens(self, row: int, token_ids: list[int]) -> None:
        """Tokens that no step has chosen; those before are computed but for the last one."""
        tokens = np.array([self._last_token[row], *token_ids], np.int32)
        self._forced[row] = _ForcedTokens(int(self._num_tokens[row]) - 1, tokens)
        self._num_tokens[row] += len(token_ids)
        self._last_token[row] = token_ids[-1]
        for token_id in token_ids:
            self.sampling.advance(np.array([row]), np.array([token_id], np.int32))

    def _append_blocks(self, row: int, block_ids: list[list[int]]) -> None:
        for group, added in enumerate(block_ids):
            begin = self._num_entries[row, group]
            self._block_tables[row, group, begin : begin + len(added)] = added
        self._num_entries[row] += [len(added) for added in block_ids]

    def _gather_tokens(
        self, rows: Rows, starts: Ints, computed: Ints, ends: Ints, drafts: dict[int, list[int]]
    ) -> Ints:
        token_ids = np.empty(starts[-1], np.int32)
        token_ids[starts[:-1]] = self._last_token[rows]
        # Only a request that still computes known tokens needs more than its newest one.
        needs_more = (np.diff(starts) > 1) | (ends < self._num_tokens[rows])
        for index in np.nonzero(needs_more)[0]:
            row, first = int(rows[index]), 0
            if row in drafts:
                token_ids[starts[index + 1] - len(drafts[row]) : starts[index + 1]] = drafts[row]
                continue
            known, forced = self._known[row], self._forced.get(row)
            if forced is not None:
                known, first = forced.token_ids, forced.first
            known = known[computed[index] - first : ends[index] - first]
            token_ids[starts[index] : starts[index + 1]] = known
        return token_ids

    def _tables(self, of: _PlanRows) -> Ints:
        """[R, G, B]; a view of the whole tables where the rows lie in order."""
        if of.are_in_order:
            return self._block_tables[: len(of.rows)]
        return self._block_tables[of.rows, :, : int(self._num_entries[of.rows].max())]


def _counts_of(drafts: dict[int, list[int]], rows: Rows) -> Ints:
    """[R]; how many draft tokens each row has."""
    return np.array([len(drafts.get(row, ())) for row in rows.tolist()], np.int32)


def _counted(counts: Ints) -> Ints:
    """0, 1, ... up to each count, one after the other."""
    firsts = np.cumsum(counts) - counts
    return np.arange(int(counts.sum()), dtype=np.int32) - np.repeat(firsts, counts).astype(np.int32)
