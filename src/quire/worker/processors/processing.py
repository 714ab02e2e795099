"""`LogitsProcessing`: runs the logits processors of an engine within a step.

A step in which a processor may change something has two halves: the compiled model returns raw
logits, the processors change them, and `StepModel.sample` samples from the result. The parts
of sampling before the processors run here, with the functions of `quire.sampling.reference`, which
give the same bits as native code; so an unchanged row gives the same token as an undivided step.

Legend: N requests that get a next token, in the order of the processors' batch; L rows of logits of
the step, which may include positions of prompts; V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import SamplingColumns, StepModel
from quire.backends.records import StepOutput
from quire.config.records import EngineConfig
from quire.errors import BackendError
from quire.logits_processors.loading import load_processors
from quire.protocol import SchedulePlan
from quire.sampling.columns import LOGPROBS_KINDS
from quire.sampling.reference import masked, not_finite, penalise, restrict
from quire.worker.input_batch import PreparedStep
from quire.worker.processors.guarded import GuardedProcessor
from quire.worker.processors.members import Members

Ints = NDArray[np.int32]
Logits = NDArray[np.float32]

_PROCESSED = LOGPROBS_KINDS["processed_logprobs"]


@dataclass(slots=True)
class WithheldRows:
    """The rows for which a step only computes logits; their tokens are sampled later."""

    columns: SamplingColumns
    """Sampling columns of the N rows."""
    of_sampled: Ints
    """[N]; the place of each request in the batch of the processors, in the plan's order."""


class LogitsProcessing:
    """Owned by the worker's thread."""

    def __init__(self, config: EngineConfig) -> None:
        """Creates the processors. Raises ConfigError if one cannot be created."""
        self._processors = [
            GuardedProcessor(cls, config) for cls in load_processors(config.model.logits_processors)
        ]
        self._members = Members()

    def withhold(
        self, plan: SchedulePlan, step: PreparedStep, request_ids: Sequence[str]
    ) -> WithheldRows | None:
        """Updates the processors with the batch, and makes the step return the logits of these
        requests instead of sampling their tokens. None: no processor changes anything, so the
        step samples as usual."""
        self._members.apply(plan)
        columns = step.batch.sampling
        if columns is None or not request_ids:
            return None
        update = self._members.settle(request_ids)
        for processor in self._processors:
            processor.update(update, self._members)
        if all(processor.is_idle for processor in self._processors):
            return None
        place_of = {member.request_id: i for i, member in enumerate(self._members.batch)}
        of_sampled = np.array([place_of[request_id] for request_id in request_ids], np.int32)
        is_new = np.ones(len(columns.temperature), np.bool_)
        if step.prompt_rows is not None:
            is_new = step.prompt_rows.is_new
        in_order = np.flatnonzero(is_new)[np.argsort(of_sampled)].astype(np.int32)
        places = np.full(len(is_new), -1, np.int32)
        places[is_new] = of_sampled
        step.batch.want_logits, step.batch.logits_places = True, places
        step.batch.sampling = _of_prompts(columns, is_new)
        return WithheldRows(columns.take(in_order), of_sampled)

    def choose(
        self, model: StepModel, raw: Logits | None, withheld: WithheldRows
    ) -> tuple[StepOutput, dict[str, str]]:
        """Samples the tokens of the withheld rows from raw logits [N, V], which may be written to.
        Also returns the errors of requests that processors end. Raises BackendError."""
        if raw is None:
            raise BackendError("the backend did not return the logits")
        columns, is_void = withheld.columns, not_finite(raw)
        if columns.mask is not None or columns.mass_from is not None:
            for row in range(len(raw)):
                raw[row] = masked(raw[row], columns, row)
        changed, columns, has_none, failures = self._changed(raw, columns, is_void)
        output = model.sample(changed, _reports(columns, processed=True))
        if output.not_finite is not None:
            for place in np.flatnonzero(output.not_finite & ~is_void & ~has_none).tolist():
                failures.setdefault(place, "logits processors left no finite logits to sample from")
        if output.no_choice is not None:
            for place in np.flatnonzero(output.no_choice & ~has_none).tolist():
                failures.setdefault(place, "logits processors left no token that is allowed here")
        output.no_choice = has_none
        reports = _reports(withheld.columns, processed=False)
        if reports.num_logprobs is not None and (reports.num_logprobs >= 0).any():
            output.logprobs = model.sample(raw, replace(reports, chosen=output.sampled)).logprobs
        batch = self._members.batch
        by_request = {batch[place].request_id: text for place, text in failures.items()}
        return output, by_request

    def advance(self, request_ids: Sequence[str], token_ids: Sequence[int]) -> None:
        """Takes in the next token of each of these requests."""
        self._members.advance(request_ids, token_ids)

    def _changed(
        self, raw: Logits, columns: SamplingColumns, is_void: NDArray[np.bool_]
    ) -> tuple[Logits, SamplingColumns, NDArray[np.bool_], dict[int, str]]:
        """Returns the logits to sample from, the columns that sampling still has to apply, which
        rows [N] have no allowed token before any processor, and errors of processors by place.
        `is_void` [N]: rows whose requests end in any case."""
        failures: dict[int, str] = {}
        changed = raw.copy()
        changed[is_void] = 0
        if columns.allowed is not None or columns.bias is not None:
            for row in range(len(changed)):
                changed[row] = restrict(changed[row], columns, row)
            columns = replace(columns, allowed=None, bias=None)
        has_none = not_finite(changed) & ~is_void
        changed[has_none] = 0
        changed = self._apply(changed, failures, is_argmax_invariant=False)
        is_random = columns.temperature > 0
        if is_random.any() and any(one.is_argmax_invariant for one in self._processors):
            if columns.seen is not None:
                for row in range(len(changed)):
                    penalise(changed[row], columns, row)
                columns = replace(columns, seen=None)
            temperatures = np.where(is_random, columns.temperature, np.float32(1))[:, None]
            scaled = changed / temperatures
            after = self._apply(scaled.copy(), failures, is_argmax_invariant=True)
            # Unchanged logits must not be changed by rounding.
            is_changed = (after != scaled) & is_random[:, None]
            with np.errstate(over="ignore"):
                changed = np.where(is_changed, after * temperatures, changed)
        return changed, columns, has_none, failures

    def _apply(
        self, logits: Logits, failures: dict[int, str], *, is_argmax_invariant: bool
    ) -> Logits:
        for processor in self._processors:
            if processor.is_argmax_invariant == is_argmax_invariant:
                logits, failed = processor.apply(logits, self._members)
                failures.update((place, failed[place]) for place in failed if place not in failures)
        return logits


def _of_prompts(columns: SamplingColumns, is_new: NDArray[np.bool_]) -> SamplingColumns:
    """The columns [L] of a step in which the rows `is_new` are withheld: it reports
    log-probabilities of prompts and which rows are not finite."""
    nothing, zeros = np.full(len(is_new), -1, np.int32), np.zeros(len(is_new), np.int32)
    reported = nothing if columns.num_logprobs is None else columns.num_logprobs
    return SamplingColumns(
        temperature=columns.temperature,
        seeds=columns.seeds,
        counters=columns.counters,
        chosen=zeros if columns.chosen is None else np.where(is_new, zeros, columns.chosen),
        num_logprobs=np.where(is_new, nothing, reported),
        logprobs_kind=columns.logprobs_kind,
    )


def _reports(columns: SamplingColumns, *, processed: bool) -> SamplingColumns:
    """The columns, without log-probabilities of the other kind (raw or processed)."""
    kind = columns.logprobs_kind
    is_processed = kind is not None and bool((kind >= _PROCESSED).all())
    return columns if is_processed == processed else replace(columns, num_logprobs=None)
