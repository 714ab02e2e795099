"""`ModelRunner`: turns a plan into flat arrays, runs the compiled model, and returns tokens;
`ProgramRows`: collects what the program gives for each position of a request (`RowsOut`).

Three stages: build the inputs (`InputBatch`), compute (one call of the backend), collect the
results. Called by `Worker`. Knows no device and no text.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import Logprobs, StepModel
from quire.backends.records import StepBatch, StepOutput
from quire.errors import BackendError, IntegrityError
from quire.protocol import PooledRows, SchedulePlan, StepResult
from quire.worker import logprobs
from quire.worker.diagnosis import explain_failures
from quire.worker.draft.pair import DraftingModel
from quire.worker.input_batch import InputBatch, PreparedStep

if TYPE_CHECKING:
    from quire.worker.draft.drafter import Drafter
    from quire.worker.draft.medusa import MedusaDrafter
    from quire.worker.processors.processing import LogitsProcessing, WithheldRows


Floats = NDArray[np.float32]


class ProgramRows:
    """The rows of requests that ask for them (`SamplingParams.ask_for_rows`). Owned by the worker's
    thread."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Floats]] = {}

    def apply(self, plan: SchedulePlan) -> None:
        """Takes in the requests that a plan starts and releases."""
        for request_id in plan.released_request_ids:
            self._parts.pop(request_id, None)
        for request_id, request in plan.started.items():
            if request.sampling_params.gives_rows:
                self._parts[request_id] = []

    def are_wanted(self, plan: SchedulePlan) -> bool:
        """Whether a request of the plan asks for rows."""
        return bool(self._parts) and any(one in self._parts for one in plan.request_ids)

    def take(
        self, plan: SchedulePlan, batch: StepBatch, rows: Floats, done: Collection[str]
    ) -> dict[str, PooledRows]:
        """Adds the rows [T, W] of a step. Returns those of the requests in `done`."""
        found = {}
        for index, request_id in enumerate(plan.request_ids):
            parts = self._parts.get(request_id)
            if parts is None:
                continue
            parts.append(rows[batch.seq_starts[index] : batch.seq_starts[index + 1]])
            if request_id in done:
                data = b"".join(part.astype("<f4").tobytes() for part in parts)
                found[request_id] = PooledRows(data, rows.shape[1], by_token=True)
        return found


_NO_CHOICE = (
    "no token can be sampled: bad_words or logit_bias forbid all tokens that structured_outputs or "
    "allowed_token_ids allow here; leave one of them out"
)


@dataclass(frozen=True, slots=True)
class BegunStep:
    """A plan whose step is being computed."""

    plan: SchedulePlan
    step: PreparedStep
    samplers: list[str]
    """Requests whose next token is sampled; of vectors, none."""
    withheld: WithheldRows | None
    """The rows whose tokens are sampled after logits processors have changed the logits."""

    @property
    def batch(self) -> StepBatch:
        """The model's input."""
        return self.step.batch


class ModelRunner:
    """Makes steps of plans for one model, and results of their outputs. One thread."""

    def __init__(
        self,
        model: StepModel,
        batch: InputBatch,
        *,
        keeps_all: bool = True,
        processing: LogitsProcessing | None = None,
        drafter: Drafter | MedusaDrafter | None = None,
    ) -> None:
        """`keeps_all`: no layer releases KV blocks before the request ends. `processing`: custom
        logits processors, if there are any. `drafter`: proposes tokens with the draft model of a
        `DraftingModel`."""
        self.model = model
        self._batch = batch
        self._keeps_all = keeps_all
        self._processing = processing
        self._drafter = drafter
        self._program_rows = ProgramRows()

    def begin(self, plan: SchedulePlan) -> BegunStep:
        """Prepare the input of the model for a plan. Later plans may begin before its output is
        there, unless they have a request whose next token this plan samples."""
        apply_plan(plan, self._batch, self.model)
        if self._drafter is not None:
            self._drafter.begin(plan)
        self._program_rows.apply(plan)
        step = self._batch.prepare(plan)
        step.batch.want_rows = self._drafter is not None or self._program_rows.are_wanted(plan)
        samplers, withheld = _samplers(plan, step), None
        if self._processing is not None:
            if step.drafts is not None:
                raise IntegrityError("logits processors cannot be combined with draft tokens")
            withheld = self._processing.withhold(plan, step, samplers)
        self._batch.begin(step)
        return BegunStep(plan, step, samplers, withheld)

    def finish(self, begun: BegunStep, output: StepOutput) -> StepResult:
        """Return the result of a plan. Raises BackendError; the rows of the plan's requests are
        unusable then."""
        plan, step, samplers, withheld = begun.plan, begun.step, begun.samplers, begun.withheld
        processing, hidden = self._processing, output.rows_out
        if len(output.sampled) != len(step.batch.logits_rows):
            raise BackendError(
                f"{len(output.sampled)} tokens were sampled, expected {len(step.batch.logits_rows)}"
            )
        kept = None if step.drafts is None else self._kept(step, output)
        failures = self._failures(plan, step, output)
        of_prompts, raw = {}, output.logits
        if step.prompt_rows is not None:
            if output.logprobs is None:
                raise BackendError("the backend returned no log-probabilities of prompt tokens")
            of_prompts = logprobs.of_prompts(step.prompt_rows, output.logprobs)
            output = _only(output, step.prompt_rows.is_new)
        if processing is not None and withheld is not None:
            output, more = processing.choose(self.model, raw, withheld)
            if output.no_choice is not None:
                void = np.flatnonzero(output.no_choice[withheld.of_sampled]).tolist()
                more = {**dict.fromkeys((samplers[i] for i in void), _NO_CHOICE), **more}
            output, failures = _only(output, withheld.of_sampled), {**more, **failures}
        self._batch.advance(step, output.sampled, kept)
        if processing is not None:
            processing.advance(samplers, output.sampled.tolist())
        result = StepResult(sampled_token_ids=[], prompt_logprobs=of_prompts)
        chosen = _by_request(output.sampled, step, kept)
        if output.logprobs is not None:
            wanted = self._batch.sampling.num_logprobs(step.sampled_rows)
            if wanted is not None:
                result.logprobs = logprobs.of_samples(
                    wanted.tolist(), step.drafts, samplers, chosen, output.logprobs
                )
        result.sampled_token_ids = chosen
        if step.samples is not None:
            found = iter(chosen)
            result.sampled_token_ids = [next(found) if one else [] for one in step.samples.tolist()]
        if step.batch.want_rows and self._drafter is None and hidden is not None:
            result.pooled = self._program_rows.take(plan, step.batch, hidden, set(samplers))
        if failures:
            _withdraw(result, plan, failures)
        draft = self.model.draft_model if isinstance(self.model, DraftingModel) else None
        if self._drafter is not None and draft is not None:
            result.next_drafts = self._drafter.propose(draft, plan, step, result, hidden)
        return result

    def _kept(self, step: PreparedStep, output: StepOutput) -> NDArray[np.bool_] | None:
        """Which of the sampled tokens are kept. Rows after draft tokens cannot fail a request: if
        they matter, the next step computes them again."""
        is_new = slice(None) if step.prompt_rows is None else step.prompt_rows.is_new
        void = np.zeros(len(output.sampled), np.bool_)
        for failed in (output.not_finite, output.no_choice):
            if failed is not None:
                void |= failed
        kept = step.keeps(output.sampled[is_new], void[is_new])
        if step.drafts is not None:
            is_later = np.zeros(len(output.sampled), np.bool_)
            is_later[is_new] = step.drafts.offsets > 0
            for failed in (output.not_finite, output.no_choice):
                if failed is not None:
                    failed &= ~is_later
        return kept

    def _failures(
        self, plan: SchedulePlan, step: PreparedStep, output: StepOutput
    ) -> dict[str, str]:
        """Error messages of requests with non-finite logits or without an allowed token."""
        batch, messages = step.batch, {}
        if output.no_choice is not None and output.no_choice.any():
            messages = dict.fromkeys(_requests_of(batch, output.no_choice), _NO_CHOICE)
        if output.not_finite is not None and output.not_finite.any():
            failed = _requests_of(batch, output.not_finite)
            known = {index: self._batch.known_tokens(step.rows[index]) for index in failed}
            whole = self._batch.with_tokens(batch)
            messages |= explain_failures(self.model, whole, known, keeps_all=self._keeps_all)
        return {plan.request_ids[index]: message for index, message in messages.items()}


def apply_plan(plan: SchedulePlan, batch: InputBatch, model: StepModel) -> None:
    """Take a plan's changes of the batch, and copy the blocks that it copies before it computes."""
    batch.apply(plan)
    for sources, targets in plan.copied_block_ids:
        model.copy_blocks(np.array(sources, np.int32), np.array(targets, np.int32))


def _by_request(
    sampled: NDArray[np.int32], step: PreparedStep, kept: NDArray[np.bool_] | None
) -> list[list[int]]:
    """The kept tokens of each request that got a next token."""
    tokens = sampled.tolist()
    if step.drafts is None or kept is None:
        return [[token_id] for token_id in tokens]
    found: list[list[int]] = []
    for token_id, offset, counts in zip(
        tokens, step.drafts.offsets.tolist(), kept.tolist(), strict=True
    ):
        if offset == 0:
            found.append([])
        if counts:
            found[-1].append(token_id)
    return found


def _samplers(plan: SchedulePlan, step: PreparedStep) -> list[str]:
    """Requests that get a next token, in the plan's order."""
    if step.samples is None:
        return plan.request_ids
    is_sampled = step.samples.tolist()
    return [i for i, one in zip(plan.request_ids, is_sampled, strict=True) if one]


def _requests_of(batch: StepBatch, logits_rows: NDArray[np.bool_]) -> list[int]:
    """Indices in the step of the requests that have these rows of logits [L]."""
    tokens = batch.logits_rows[logits_rows]
    places = np.searchsorted(batch.seq_starts, tokens, side="right") - 1
    found: list[int] = np.unique(places).tolist()
    return found


def _withdraw(result: StepResult, plan: SchedulePlan, failures: dict[str, str]) -> None:
    """Removes everything of failed requests from the result, except their error messages."""
    result.failures = failures
    result.unmet = [name for name, message in failures.items() if message == _NO_CHOICE]
    for index, request_id in enumerate(plan.request_ids):
        if request_id in failures:
            result.sampled_token_ids[index] = []
            result.logprobs.pop(request_id, None)
            result.prompt_logprobs.pop(request_id, None)
            result.pooled.pop(request_id, None)


def _only(output: StepOutput, rows: NDArray[np.bool_] | NDArray[np.int32]) -> StepOutput:
    """The output restricted to these rows of logits."""
    found = output.logprobs
    if found is not None:
        found = Logprobs(
            token_ids=found.token_ids[rows],
            logprobs=found.logprobs[rows],
            ranks=found.ranks[rows],
            sampled=found.sampled[rows],
            sampled_ranks=found.sampled_ranks[rows],
        )
    return StepOutput(output.sampled[rows], found)
