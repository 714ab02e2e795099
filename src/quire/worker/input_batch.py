"""`InputBatch`: every request that the worker holds, as rows of persistent flat arrays.

A step's input is gathered from these rows with a few NumPy calls, for any number of requests.
Called by `ModelRunner`. Knows plans and rows, but no models.

Legend: T tokens in the step, R requests of the step, G layer groups, B entries of a block
table, L rows that need logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quire.backends.records import LoadedAdapter, StepBatch
from quire.config.records import LogprobsMode
from quire.errors import IntegrityError
from quire.protocol import ScheduledRequest, SchedulePlan
from quire.protocol.pooling_params import PoolingParams
from quire.sampling.columns import SamplingColumns
from quire.worker.given_rows import FindRows, GivenRows, StepRows, rows_are_missing
from quire.worker.prompt_logprobs import PromptLogprobRows, PromptRows
from quire.worker.row_choices import Drafts, Masks, Rows
from quire.worker.sampling_rows import SamplingRows

Ints = NDArray[np.int32]

_UNSEEN = -1
"""Block id of entries that no token will attend to, so that a backend refuses to read them."""


@dataclass(slots=True)
class PreparedStep:
    """A step's input, and what is needed to process its output."""

    batch: StepBatch
    rows: Rows
    """[R]; each request's row, in the plan's order."""
    ends: Ints
    """[R]; computed tokens after the step."""
    samples: NDArray[np.bool_] | None
    """[R]; which requests get a next token; None: all."""
    sampled_rows: Rows
    """[L]; the row of each sampled token. A request has one more for each draft token."""
    num_tokens: Ints
    """[L]; number of tokens of the request before each sampled token, including draft tokens."""
    prompt_rows: PromptRows | None = None
    """All rows of logits, if log-probabilities of prompt tokens are wanted; otherwise None."""
    drafts: Drafts | None = None
    is_ahead: NDArray[np.bool_] | None = None
    """[L]; the sampled tokens that the model keeps, so that a later step may begin with them. None:
    none."""

    def keeps(self, sampled: Ints, is_void: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        """[L]; which of the `sampled` tokens [L] are kept: those before which every draft token
        equals the token sampled in its place. None: all. `is_void` [L]: places whose logits gave
        no token; the first place of a request is kept nevertheless, and ends the request."""
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
    """Whether the rows are 0, 1, 2 and so on."""


_NO_ROWS = _PlanRows([], np.empty(0, np.intp), are_in_order=True)


class InputBatch:
    """One row per request, from its start to its release; free rows are reused.

    Row r has `known[r]`, the tokens it was started with, and `last_token[r]`, the newest one. The
    tokens between these are never needed again. Owned by the worker's thread.
    """

    def __init__(
        self,
        max_num_seqs: int,
        num_groups: int,
        max_num_entries: int,
        vocab_size: int,
        logprobs_mode: LogprobsMode = "raw_logprobs",
        adapter: Callable[[str], LoadedAdapter | None] = lambda _: None,
        find_rows: FindRows = rows_are_missing,
        *,
        keeps_tokens: bool = False,
    ) -> None:
        """`max_num_entries`: the largest B. `adapter`: looks up a loaded adapter by its
        digest. `find_rows`: looks up rows that take the place of embeddings. `keeps_tokens`: the
        model keeps sampled tokens in the places of their rows, so that the next step may begin
        before `advance`."""
        self._keeps_tokens = keeps_tokens
        self._num_sampled = np.zeros(max_num_seqs, np.int32)
        """For each row, how many of its tokens are sampled and not collected yet."""
        self._follows = np.zeros(max_num_seqs, np.bool_)
        """The rows whose tokens the model does not keep."""
        self.row_of: dict[str, int] = {}
        self.sampling = SamplingRows(max_num_seqs, vocab_size, logprobs_mode)
        self._prompt_logprobs = PromptLogprobRows(vocab_size)
        self._pooling: dict[int, PoolingParams] = {}
        """The parameters of requests that pool, by row."""
        self._given = GivenRows(find_rows)
        self._adapter = adapter
        self._adapters: dict[int, LoadedAdapter] = {}
        """Adapters by row. A row keeps its adapter even if it is dropped elsewhere."""
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self._known: list[Ints] = [np.empty(0, np.int32)] * max_num_seqs
        self._block_tables = np.zeros((max_num_seqs, num_groups, max_num_entries), np.int32)
        self._num_entries = np.zeros((max_num_seqs, num_groups), np.int32)
        self._num_tokens = np.zeros(max_num_seqs, np.int32)
        self._num_computed = np.zeros(max_num_seqs, np.int32)
        self._last_token = np.zeros(max_num_seqs, np.int32)
        self._numbers = np.arange(max_num_seqs + 1, dtype=np.int32)
        self._last_plan = _NO_ROWS
        """Rows of the last plan; reset when a request is started or released."""

    def apply(self, plan: SchedulePlan) -> None:
        """Releases, starts and extends rows according to the plan."""
        if plan.released_request_ids or plan.started:
            self._last_plan = _NO_ROWS
        for request_id in plan.released_request_ids:
            row = self.row_of.pop(request_id, None)
            if row is not None:
                self.sampling.clear(row)
                self._prompt_logprobs.wanted.pop(row, None)
                self._pooling.pop(row, None)
                self._adapters.pop(row, None)
                self._given.by_number.pop(row, None)
                self._free_rows.append(row)
        for request in plan.started.values():
            self._start(request)
        for request_id, block_ids in plan.new_block_ids.items():
            self._append_blocks(self.row_of[request_id], block_ids)

    def prepare(self, plan: SchedulePlan) -> PreparedStep:
        """The step's input, with requests in the plan's order, so that a request may read K/V that
        an earlier request of the same step writes."""
        plan_rows = self._rows_of(plan.request_ids)
        rows = plan_rows.rows
        computed, known = self._num_computed[rows], self._num_tokens[rows]
        is_one_each = plan.num_scheduled_tokens.count(1) == len(rows)
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
            offsets = counted(counts)
            logits_rows = np.repeat(logits_rows - counts + 1, counts) + offsets
            sampled_rows = np.repeat(sampled_rows, counts)
            num_tokens = np.repeat(num_tokens, counts) + offsets
            drafts = Drafts(draft_ids, offsets)
        prompts = self._prompt_logprobs
        spans = prompts.spans(rows, starts, computed, ends) if prompts.wanted else []
        prompt_rows = PromptRows.merge(spans, logits_rows, sampled_rows) if spans else None
        masks = self._masks(plan) if plan.grammar_bitmask else None
        if prompt_rows is None:
            columns = self.sampling.columns(sampled_rows, num_tokens, masks=masks, drafts=drafts)
        else:
            logits_rows = prompt_rows.logits_rows
            columns = self._columns_with_prompts(prompt_rows, num_tokens, masks, drafts)
        given = StepRows()
        if self._given.by_number:
            given = self._given.of_step(rows.tolist(), starts.tolist(), computed.tolist())
        batch = StepBatch(
            token_ids=token_ids,
            positions=positions,
            seq_starts=starts,
            context_lens=ends,
            block_tables=self._tables(plan_rows),
            logits_rows=logits_rows,
            sampling=columns,
            adapters=self._adapters_of(rows),
            input_rows=given.embeddings,
            given_kv=given.kv,
            axis_positions=given.axis_positions,
            spans=given.spans,
        )
        samples = None if all_complete else is_complete
        step = PreparedStep(
            batch, rows, ends, samples, sampled_rows, num_tokens, prompt_rows, drafts
        )
        if self._keeps_tokens:
            self._set_places(step)
        return step

    def _columns_with_prompts(
        self,
        prompt_rows: PromptRows,
        num_tokens: Ints,
        masks: dict[int, Masks] | None,
        drafts: Drafts | None,
    ) -> SamplingColumns | None:
        """The columns of all rows of logits, among them those of prompt tokens. `num_tokens` and
        `drafts`: of the rows that are sampled."""
        rows, of_all = prompt_rows.rows, drafts
        counters = self._num_tokens[rows]
        if drafts is not None:
            counters[prompt_rows.is_new] = num_tokens
            of_all = Drafts(drafts.token_ids, np.zeros(len(rows), np.int32))
            of_all.offsets[prompt_rows.is_new] = drafts.offsets
        columns = self.sampling.columns(
            rows, counters, prompt_rows.targets, masks=masks, drafts=of_all
        )
        if columns is not None:
            prompt_rows.report(columns)
        return columns

    def _set_places(self, step: PreparedStep) -> None:
        """Says where the model keeps the sampled tokens, and which tokens it takes from there."""
        batch, rows, sampled_rows = step.batch, step.rows, step.sampled_rows
        is_ahead = ~self._follows[sampled_rows]
        if step.drafts is not None:
            is_ahead &= ~np.isin(sampled_rows, list(step.drafts.token_ids))
        is_new = slice(None) if step.prompt_rows is None else step.prompt_rows.is_new
        batch.sampled_places = np.full(len(batch.logits_rows), -1, np.int32)
        batch.sampled_places[is_new] = np.where(is_ahead, sampled_rows, -1)
        if self._num_sampled[rows].any():
            places = np.where(self._num_sampled[rows] > 0, rows, -1)
            batch.token_places = np.full(len(batch.token_ids), -1, np.int32)
            batch.token_places[batch.seq_starts[:-1]] = places
        step.is_ahead = is_ahead

    def _rows_of(self, request_ids: list[str]) -> _PlanRows:
        """The rows of these requests. Most steps have the same requests as the step before."""
        if request_ids != self._last_plan.request_ids:
            rows = [self.row_of[request_id] for request_id in request_ids]
            are_in_order = rows == list(range(len(rows)))
            self._last_plan = _PlanRows(request_ids, np.array(rows, np.intp), are_in_order)
        return self._last_plan

    def _masks(self, plan: SchedulePlan) -> dict[int, Masks]:
        """The tokens that a grammar allows, by row."""
        return {
            self.row_of[request_id]: np.frombuffer(masks, np.uint32).reshape(
                1 + len(plan.draft_token_ids.get(request_id, ())), -1
            )
            for request_id, masks in zip(
                plan.structured_output_request_ids, plan.grammar_bitmask, strict=True
            )
        }

    def _adapters_of(self, rows: Rows) -> list[LoadedAdapter | None] | None:
        """[R]; None: no request has an adapter."""
        if not self._adapters:
            return None
        return [self._adapters.get(row) for row in rows.tolist()]

    def pooling_params(self, row: int) -> PoolingParams:
        """The parameters of the pooling request in this row."""
        return self._pooling[row]

    def begin(self, step: PreparedStep) -> None:
        """Records that the step is being computed: the next chunk of a prompt may follow, or a
        token whose place the model knows."""
        self._num_computed[step.rows] = step.ends
        if step.is_ahead is not None:
            rows = step.sampled_rows[step.is_ahead]
            self._num_sampled[rows] += 1
            self._num_tokens[rows] += 1

    def with_tokens(self, batch: StepBatch) -> StepBatch:
        """The oldest step that is not collected, with all of its tokens: they are known now."""
        places = batch.token_places
        if places is None:
            return batch
        token_ids = np.where(places >= 0, self._last_token[places], batch.token_ids)
        return replace(batch, token_ids=token_ids.astype(np.int32), token_places=None)

    def known_tokens(self, row: int) -> Ints:
        """The tokens that the request in this row was started with."""
        return self._known[row]

    def advance(
        self, step: PreparedStep, sampled: Ints, kept: NDArray[np.bool_] | None = None
    ) -> None:
        """Records the result of a step: the `sampled` tokens [L], and which of them are `kept` [L]
        according to `PreparedStep.keeps` (None: all)."""
        rows, num_tokens, others = step.sampled_rows, step.num_tokens, step.sampled_rows
        if step.is_ahead is not None:  # `begin` has counted these tokens
            self._num_sampled[rows[step.is_ahead]] -= 1
            num_tokens = np.where(step.is_ahead, self._num_tokens[rows] - 1, num_tokens)
            others = rows[~step.is_ahead]
        if kept is None:
            self._last_token[rows] = sampled
            self._num_tokens[rows] = num_tokens + 1
            self.sampling.advance(rows, sampled)
            return
        # One token at a time, so that the last kept token remains.
        for place in np.flatnonzero(kept):
            row = rows[place : place + 1]
            self._last_token[row] = sampled[place]
            self._num_tokens[row] = num_tokens[place] + 1
            self.sampling.advance(row, sampled[place : place + 1])
        self._num_computed[others] = self._num_tokens[others] - 1

    def _start(self, request: ScheduledRequest) -> None:
        if not self._free_rows:
            raise IntegrityError(f"no free row for request {request.request_id}")
        row = self._free_rows.pop()
        self.row_of[request.request_id] = row
        self._known[row] = np.array(request.token_ids, np.int32)
        self._num_tokens[row] = len(request.token_ids)
        self._num_computed[row] = request.num_computed_tokens
        self._last_token[row] = request.token_ids[-1]
        self._num_sampled[row] = 0
        self._follows[row] = request.sampling_params.follows_tokens
        if request.adapter and (adapter := self._adapter(request.adapter)) is not None:
            self._adapters[row] = adapter
        if request.input_rows:
            self._given.set(row, request.input_rows, request.num_prompt_tokens)
        for group, (first, block_ids) in enumerate(
            zip(request.first_entries, request.block_ids, strict=True)
        ):
            end = first + len(block_ids)
            table = self._block_tables[row, group]
            table[:first] = _UNSEEN
            table[first:end] = block_ids
            self._num_entries[row, group] = end
        if request.pooling_params is not None:
            self._pooling[row] = request.pooling_params
            return
        self.sampling.set(row, request)
        if request.sampling_params.prompt_logprobs is not None:
            self._prompt_logprobs.set(row, request)

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
        # Only requests that still compute known tokens need more than their newest token.
        needs_more = (np.diff(starts) > 1) | (ends < self._num_tokens[rows])
        for index in np.nonzero(needs_more)[0]:
            row = int(rows[index])
            if row in drafts:
                token_ids[starts[index + 1] - len(drafts[row]) : starts[index + 1]] = drafts[row]
                continue
            known = self._known[row][computed[index] : ends[index]]
            token_ids[starts[index] : starts[index + 1]] = known
        return token_ids

    def tables_of(self, rows: Rows, group: int) -> Ints:
        """[R, 1, B]; the block tables of one layer group."""
        width = int(self._num_entries[rows, group].max(initial=0))
        return np.ascontiguousarray(self._block_tables[rows, group : group + 1, :width])

    def _tables(self, of: _PlanRows) -> Ints:
        """[R, G, B]; a view of the whole tables if the rows are in order."""
        if of.are_in_order:
            return self._block_tables[: len(of.rows)]
        return self._block_tables[of.rows, :, : int(self._num_entries[of.rows].max(initial=0))]


def _counts_of(drafts: dict[int, list[int]], rows: Rows) -> Ints:
    """[R]; number of draft tokens of each row."""
    return np.array([len(drafts.get(row, ())) for row in rows.tolist()], np.int32)


def counted(counts: Ints) -> Ints:
    """The concatenation of 0, 1, ..., count - 1 for each count."""
    firsts = np.cumsum(counts) - counts
    return np.arange(int(counts.sum()), dtype=np.int32) - np.repeat(firsts, counts).astype(np.int32)
