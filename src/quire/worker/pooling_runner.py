"""`PoolingRunner`: runs plans on a model that gives vectors. Takes the place of `ModelRunner`.

It builds the inputs with the same `InputBatch`, and finishes each result as its request asks: the
vector is shortened and divided by its length, or scores become probabilities. Called by executors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import StepModel
from quire.backends.records import StepOutput
from quire.config.pooling import PoolingActivation, PoolingConfig
from quire.errors import BackendError
from quire.protocol import PooledRows, SchedulePlan, StepResult
from quire.protocol.pooling_params import PoolingParams
from quire.worker.diagnosis import explain_failures
from quire.worker.input_batch import InputBatch, PreparedStep, counted
from quire.worker.model_runner import BegunStep, apply_plan

Floats = NDArray[np.float32]


@dataclass(slots=True)
class PoolingRunner:
    """Runs plans on one compiled model. One thread."""

    model: StepModel
    batch: InputBatch
    pooling: PoolingConfig
    keeps_all: bool = True
    _rows_so_far: dict[str, list[Floats]] = field(default_factory=dict)
    """By request id, the rows of texts of which earlier steps have computed a part."""

    def begin(self, plan: SchedulePlan) -> BegunStep:
        """Prepare the input of the model for a plan."""
        apply_plan(plan, self.batch, self.model)
        step = self.batch.prepare(plan)
        batch = step.batch
        batch.sampling = None
        for request_id in plan.released_request_ids:
            self._rows_so_far.pop(request_id, None)
        self._choose_rows(step)
        batch.token_types = self._token_types(step)
        self.batch.begin(step)
        return BegunStep(plan, step, [], None)

    def finish(self, begun: BegunStep, output: StepOutput) -> StepResult:
        """Return the result of a plan. Raises BackendError."""
        plan, step, batch = begun.plan, begun.step, begun.batch
        vectors, is_done = output.vectors, _is_done(step)
        if vectors is None or len(vectors) != len(batch.logits_rows):
            raise BackendError("the model gave no vectors, or too few")
        self.batch.advance(step, np.zeros(len(step.sampled_rows), np.int32))
        pooled: dict[str, PooledRows] = {}
        failed: list[int] = []
        ends = np.cumsum(self._counts(step, self._by_token(step)))
        pieces = np.split(vectors, ends[:-1]) if len(ends) else []
        for index, rows in enumerate(pieces):
            request_id, place = plan.request_ids[index], int(step.rows[index])
            params = self.batch.pooling_params(place)
            pooling = self.pooling.of(params.task)
            if pooling.is_by_token:
                self._rows_so_far.setdefault(request_id, []).append(rows)
            if not is_done[index]:
                continue
            if pooling.is_by_token:
                rows = np.concatenate(self._rows_so_far.pop(request_id))
            if not np.isfinite(rows).all():
                failed.append(index)
                continue
            if columns := self.pooling.returned_columns:
                rows = rows[:, columns]
            if (chunking := params.late_chunking_params) is None:
                rows = self._steps(rows, place)
            else:
                rows = chunk_means(rows, chunking.chunk_size)
            found = [finish(row, params, pooling) for row in rows]
            data = b"".join(row.astype("<f4").tobytes() for row in found)
            width = len(found[0]) if found else rows.shape[1]
            if pooling.is_sparse:
                pooled[request_id] = PooledRows(data, len(found))
            else:
                pooled[request_id] = PooledRows(data, width, pooling.is_by_token)
        result = StepResult(sampled_token_ids=[[] for _ in plan.request_ids], pooled=pooled)
        if failed:
            result.failures = self._failures(plan, step, failed)
        return result

    def _steps(self, rows: Floats, place: int) -> Floats:
        """The rows of a text's results that are returned. Source: vLLM, `StepPool` and
        `BOSEOSFilter`."""
        pooling, tokens = self.pooling, self.batch.known_tokens(place)[: len(rows)]
        if pooling.outer_tokens != (None, None):
            inner = pooling.inner(tokens.tolist())
            rows, tokens = rows[inner], tokens[inner]
        if pooling.step_tag_id is not None:
            rows = rows[tokens == pooling.step_tag_id]
        return rows

    def _by_token(self, step: PreparedStep) -> NDArray[np.bool_]:
        """[R]; the requests whose tokens have results."""
        tasks = (self.batch.pooling_params(row).task for row in step.rows.tolist())
        return np.array([self.pooling.of(task).is_by_token for task in tasks], np.bool_)

    def _counts(self, step: PreparedStep, by_token: NDArray[np.bool_]) -> NDArray[np.int32]:
        """[R]; rows of each request: one of a text that is done, or one for each token."""
        found = np.where(by_token, np.diff(step.batch.seq_starts), _is_done(step))
        return found.astype(np.int32)

    def _token_types(self, step: PreparedStep) -> NDArray[np.int32] | None:
        """[T]; the types of the step's tokens. None: all are 0."""
        types = [self.batch.pooling_params(row).token_type_ids for row in step.rows.tolist()]
        if not any(types):
            return None
        found = np.zeros(len(step.batch.token_ids), np.int32)
        starts = step.batch.seq_starts
        for index, given in enumerate(types):
            if given:
                begin, end = starts[index], starts[index + 1]
                first = int(step.ends[index]) - int(end - begin)
                found[begin:end] = given[first : first + end - begin]
        return found

    def _choose_rows(self, step: PreparedStep) -> None:
        """Sets the tokens whose states are pooled: of a mean, any one of the request. Where these
        are not the last token, the step has all tokens (`PoolingConfig.needs_all_rows`)."""
        batch, by_token = step.batch, self._by_token(step)
        counts = self._counts(step, by_token)
        firsts = batch.seq_starts[:-1]
        if self.pooling.pooling_type == "last":
            firsts = np.where(by_token, firsts, batch.seq_starts[1:] - 1)
        batch.logits_rows = (np.repeat(firsts, counts) + counted(counts)).astype(np.int32)
        if self.pooling.pooling_type == "mean" and by_token.any():
            batch.unpooled = np.repeat(by_token, counts)

    def _failures(
        self, plan: SchedulePlan, step: PreparedStep, failed: list[int]
    ) -> dict[str, str]:
        known = {index: self.batch.known_tokens(int(step.rows[index])) for index in failed}
        batch = step.batch
        if batch.unpooled is not None:  # the mean of a request is not finite if a row of it is not
            batch = replace(batch, logits_rows=batch.seq_starts[:-1], unpooled=None)
        messages = explain_failures(self.model, batch, known, keeps_all=self.keeps_all)
        return {plan.request_ids[index]: message for index, message in messages.items()}


def _is_done(step: PreparedStep) -> NDArray[np.bool_]:
    """[R]; the requests whose last token the step computes."""
    return np.ones(len(step.rows), np.bool_) if step.samples is None else step.samples


def chunk_means(rows: Floats, size: int) -> Floats:
    """The mean of each `size` rows; the last one may be of fewer. Dense layers are linear then
    (`PoolingConfig.has_activations`), so that their order with the mean does not matter."""
    pieces = [rows[begin : begin + size] for begin in range(0, len(rows), size)]
    return np.stack([piece.astype(np.float64).mean(axis=0) for piece in pieces]).astype(np.float32)


def finish(row: Floats, params: PoolingParams, pooling: PoolingConfig) -> Floats:
    """A row of the model's result as a request wants it. Computed in float64 of this row alone, so
    that its bits do not depend on others."""
    wide = row.astype(np.float64)
    if pooling.is_difference:
        wide = wide[1:] - wide[:1]
    if pooling.task.endswith("embed"):
        wide = wide[: params.dimensions or pooling.own_dimensions]
    is_activated = pooling.is_activated if params.use_activation is None else params.use_activation
    if not pooling.task.endswith("embed"):
        wide = (wide - pooling.logit_mean) / pooling.logit_sigma
    if is_activated:
        wide = _ACTIVATIONS[pooling.activation](wide)
    return wide.astype(np.float32)


def _normalize(row: NDArray[np.float64]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = row / max(float(np.sqrt(np.square(row).sum())), 1e-12)
    return result


def _softmax(row: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(row - row.max())
    result: NDArray[np.float64] = weights / weights.sum()
    return result


def _sigmoid(row: NDArray[np.float64]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = 0.5 * (1.0 + np.tanh(0.5 * row))
    return result


_ACTIVATIONS: dict[PoolingActivation, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "normalize": _normalize,
    "softmax": _softmax,
    "sigmoid": _sigmoid,
    "identity": lambda row: row,
}
