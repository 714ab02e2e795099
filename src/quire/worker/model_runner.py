"""`ModelRunner`: from a plan to flat arrays, through the compiled model, and back to tokens.

Three borders: build the inputs (`InputBatch`), compute (one call of the backend), bring the
results back. Called by `Worker`. Knows no device and no text.
"""

from __future__ import annotations

from quire.backends.base import CompiledModel, Logprobs
from quire.errors import BackendError
from quire.protocol import SchedulePlan, StepResult, TokenLogprobs
from quire.worker.input_batch import InputBatch, PreparedStep


class ModelRunner:
    """Runs plans on one compiled model. Owned by the worker's thread."""

    def __init__(self, model: CompiledModel, batch: InputBatch) -> None:
        self._model = model
        self._batch = batch

    def execute(self, plan: SchedulePlan) -> StepResult:
        """One step. Raises BackendError; the rows of the plan's requests are then worthless."""
        self._batch.apply(plan)
        if not plan.request_ids:
            return StepResult(sampled_token_ids=[])
        step = self._batch.prepare(plan)
        output = self._model.step(step.batch)
        if len(output.sampled) != len(step.sampled_rows):
            raise BackendError(
                f"{len(output.sampled)} tokens were sampled, {len(step.sampled_rows)} wanted"
            )
        self._batch.advance(step, output.sampled)
        sampled = [[token_id] for token_id in output.sampled.tolist()]
        result = StepResult(sampled_token_ids=sampled)
        samplers = plan.request_ids
        if step.samples is not None:
            is_sampled = step.samples.tolist()
            found = iter(sampled)
            result.sampled_token_ids = [next(found) if one else [] for one in is_sampled]
            samplers = [i for i, one in zip(plan.request_ids, is_sampled, strict=True) if one]
        if output.logprobs is not None:
            result.logprobs = self._logprobs(step, samplers, sampled, output.logprobs)
        return result

    def _logprobs(
        self,
        step: PreparedStep,
        request_ids: list[str],
        sampled: list[list[int]],
        logprobs: Logprobs,
    ) -> dict[str, list[TokenLogprobs]]:
        counts = self._batch.sampling.num_logprobs(step.sampled_rows)
        if counts is None:
            return {}
        width = logprobs.token_ids.shape[1]
        found = {}
        for index, (request_id, count) in enumerate(zip(request_ids, counts.tolist(), strict=True)):
            if count < 0:
                continue
            best = min(count, width)
            found[request_id] = [
                TokenLogprobs(
                    token_ids=[*sampled[index], *logprobs.token_ids[index, :best].tolist()],
                    logprobs=[
                        float(logprobs.sampled[index]),
                        *logprobs.logprobs[index, :best].tolist(),
                    ],
                    ranks=[int(logprobs.sampled_ranks[index]), *range(1, best + 1)],
                )
            ]
        return found
