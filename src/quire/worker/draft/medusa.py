"""`MedusaDrafter`: proposes with heads that need a hidden state of the model and nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.backends.records import StepBatch
from quire.protocol import SchedulePlan, StepResult
from quire.worker.draft.pair import DraftModel
from quire.worker.input_batch import PreparedStep


class MedusaDrafter:
    """Keeps nothing. Takes the place of a `Drafter`."""

    def begin(self, plan: SchedulePlan) -> None:
        """Does nothing."""

    def propose(
        self,
        draft: DraftModel,
        plan: SchedulePlan,
        step: PreparedStep,
        result: StepResult,
        hidden: NDArray[np.float32] | None,
    ) -> dict[str, list[int]]:
        """Tokens that the heads propose after a step. `hidden` [T, W]: the model's hidden states.
        Raises BackendError."""
        wanted: dict[str, int] = {}
        rows: list[int] = []
        ends = step.batch.seq_starts[1:].tolist()
        for request_id, end, sampled in zip(
            plan.request_ids, ends, result.sampled_token_ids, strict=True
        ):
            count = plan.num_next_drafts.get(request_id, 0)
            if count and sampled:
                num_wrong = 1 + len(plan.draft_token_ids.get(request_id, ())) - len(sampled)
                wanted[request_id] = count
                rows.append(end - 1 - num_wrong)
        if draft.head is None or hidden is None or not rows:
            return {}
        count = len(rows)
        places = np.zeros(count, np.int32)
        output = draft.step(
            StepBatch(
                token_ids=places,
                positions=places,
                seq_starts=np.arange(count + 1, dtype=np.int32),
                context_lens=np.ones(count, np.int32),
                block_tables=np.zeros((count, 0, 1), np.int32),
                logits_rows=np.arange(count, dtype=np.int32),
                sampling=None,
                rows_in=hidden[rows],
            )
        )
        if output.rows_out is None:
            return {}
        logits = output.rows_out.reshape(count, draft.head.num_at_once, -1)
        chosen = np.where(np.isfinite(logits).all(axis=2), logits.argmax(axis=2), -1)
        found = {}
        for (request_id, most), token_ids in zip(wanted.items(), chosen.tolist(), strict=True):
            ids = token_ids[:most]
            if -1 in ids:
                ids = ids[: ids.index(-1)]
            if ids:
                found[request_id] = ids
        return found
