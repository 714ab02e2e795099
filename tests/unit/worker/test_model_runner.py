"""ModelRunner: results go back to the requests they belong to."""

from __future__ import annotations

import numpy as np
import pytest
from bare_model import BareModel, plan_of, run

from quire.backends.base import Logprobs, StepBatch, StepOutput
from quire.errors import BackendError
from quire.params import SamplingParams
from quire.protocol import ScheduledRequest
from quire.worker.input_batch import InputBatch
from quire.worker.model_runner import ModelRunner


class EchoModel(BareModel):
    """Chooses, for each row, its last token plus 1; the best two are that and 0."""

    def __init__(self) -> None:
        self.lost_rows = 0

    def step(self, batch: StepBatch) -> StepOutput:
        sampled = batch.token_ids[batch.logits_rows] + 1
        count = len(sampled)
        logprobs = None
        if batch.sampling is not None and batch.sampling.num_logprobs is not None:
            logprobs = Logprobs(
                token_ids=np.stack([sampled, np.zeros(count, np.int32)], 1),
                logprobs=np.tile(np.array([-0.5, -1.5], np.float32), (count, 1)),
                ranks=np.tile(np.array([1, 2], np.int32), (count, 1)),
                sampled=np.full(count, -0.5, np.float32),
                sampled_ranks=np.ones(count, np.int32),
            )
        return StepOutput(sampled[self.lost_rows :].astype(np.int32), logprobs)


def started(name: str, tokens: list[int], **params: object) -> ScheduledRequest:
    return ScheduledRequest(
        request_id=name,
        token_ids=tokens,
        num_prompt_tokens=len(tokens),
        sampling_params=SamplingParams(seed=1, **params),  # type: ignore[arg-type]
        block_ids=[[0, 1]],
        first_entries=[0],
        num_computed_tokens=0,
    )


def test_unfinished_prompts_get_no_token() -> None:
    runner = ModelRunner(EchoModel(), InputBatch(4, 1, 8, 100))
    first = plan_of({"a": 2, "b": 3, "c": 1}, *(started(n, [5, 6, 7]) for n in "abc"))
    assert run(runner, first).sampled_token_ids == [[], [8], []]
    assert run(runner, plan_of({"c": 2, "b": 1, "a": 1})).sampled_token_ids == [[8], [9], [8]]


def test_logprobs_go_to_those_who_asked() -> None:
    runner = ModelRunner(EchoModel(), InputBatch(4, 1, 8, 100))
    requests = [
        started("none", [5]),
        started("chosen", [6], logprobs=0),
        started("late", [1, 2], logprobs=2),
        started("one", [7], logprobs=1),
    ]
    result = run(runner, plan_of({"none": 1, "chosen": 1, "late": 1, "one": 1}, *requests))
    assert sorted(result.logprobs) == ["chosen", "one"]
    [chosen] = result.logprobs["chosen"]
    assert (chosen.token_ids, chosen.logprobs, chosen.ranks) == ([7], [-0.5], [1])
    [one] = result.logprobs["one"]
    assert (one.token_ids, one.logprobs, one.ranks) == ([8, 8], [-0.5, -0.5], [1, 1])


def test_a_backend_that_loses_rows_is_caught() -> None:
    model = EchoModel()
    runner = ModelRunner(model, InputBatch(4, 1, 8, 100))
    model.lost_rows = 1
    with pytest.raises(BackendError, match="0 tokens were sampled, expected 1"):
        run(runner, plan_of({"a": 1}, started("a", [1])))
