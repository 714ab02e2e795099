"""A request whose logits are not finite fails alone, with the name of where that began."""

from __future__ import annotations

import numpy as np
import pytest
from bare_model import BareModel, run

from quire.backends.base import Logprobs, StepBatch, StepOutput
from quire.errors import BackendError
from quire.params import SamplingParams
from quire.program import OpPlace
from quire.protocol import ScheduledRequest, SchedulePlan, StepResult
from quire.worker.input_batch import InputBatch
from quire.worker.model_runner import ModelRunner

BAD = 66
"""A token whose embedding is not finite."""
HEAD = 77
"""A token behind which the logits are not, though all before them is."""
TEXT = "the model gave numbers that are not finite (NaN or infinity)"
BLOCK_SIZE = 4


class BrokenModel(BareModel):
    """Chooses token 5. Keeps tokens where their K and V would be."""

    def __init__(self) -> None:
        self.cache: dict[tuple[int, int], int] = {}
        self.looked_at: list[list[int]] = []
        """The positions of each step that was repeated."""
        self.error: str | None = None
        self.notices = True

    def step(self, batch: StepBatch) -> StepOutput:
        contexts = self._write(batch)
        requests = np.searchsorted(batch.seq_starts, batch.logits_rows, side="right") - 1
        ends = batch.positions[batch.logits_rows] + 1
        not_finite = [
            not {BAD, HEAD}.isdisjoint(contexts[request][:end])
            for request, end in zip(requests, ends, strict=True)
        ]
        count = len(ends)
        logprobs = Logprobs(
            token_ids=np.zeros((count, 1), np.int32),
            logprobs=np.zeros((count, 1), np.float32),
            sampled=np.zeros(count, np.float32),
            ranks=np.ones((count, 0), np.int32),
            sampled_ranks=np.ones(count, np.int32),
        )
        sampled = np.full(count, 5, np.int32)
        told = np.array(not_finite, np.bool_) if self.notices else None
        return StepOutput(sampled, logprobs, not_finite=told)

    def find_not_finite(self, batch: StepBatch) -> list[OpPlace | None]:
        if self.error:
            raise BackendError(self.error)
        self.looked_at.append(batch.positions.tolist())
        places: list[OpPlace | None] = []
        for request, context in enumerate(self._write(batch)):
            begin, end = batch.seq_starts[request : request + 2]
            place = OpPlace(0, "attention", reads_cache=True) if BAD in context else None
            places.append(OpPlace(None, "embed") if BAD in batch.token_ids[begin:end] else place)
        return places

    def _write(self, batch: StepBatch) -> list[list[int]]:
        """The tokens of each request; what is written twice is the same."""
        contexts = []
        for request, length in enumerate(batch.context_lens.tolist()):
            table = batch.block_tables[request, 0].tolist()
            slots = [(table[p // BLOCK_SIZE], p % BLOCK_SIZE) for p in range(length)]
            for row in range(*batch.seq_starts[request : request + 2]):
                slot, token = slots[batch.positions[row]], int(batch.token_ids[row])
                assert self.cache.setdefault(slot, token) == token
            contexts.append([self.cache[slot] for slot in slots])
        return contexts


class Runner:
    """Plans by hand over a broken model; each request has blocks of its own."""

    def __init__(self) -> None:
        self.model = BrokenModel()
        self._runner = ModelRunner(self.model, InputBatch(4, 1, 16, 100))
        self._held: set[str] = set()

    def step(self, work: dict[str, int], **prompts: list[int]) -> StepResult:
        started = {
            name: ScheduledRequest(
                request_id=name,
                token_ids=tokens,
                num_prompt_tokens=len(tokens),
                sampling_params=SamplingParams(seed=1, logprobs=1, prompt_logprobs=1),
                block_ids=[[16 * (len(self._held) + i) + j for j in range(16)]],
                first_entries=[0],
                num_computed_tokens=0,
            )
            for i, (name, tokens) in enumerate(prompts.items())
        }
        self._held |= set(prompts)
        plan = SchedulePlan(
            request_ids=list(work),
            num_scheduled_tokens=list(work.values()),
            started=started,
            new_block_ids={},
            released_request_ids=[],
        )
        return run(self._runner, plan)


def test_a_failed_request_has_nothing_but_its_failure() -> None:
    runner = Runner()
    result = runner.step({"a": 3, "bad": 3, "b": 2}, a=[1, 2, 3], bad=[1, BAD, 3], b=[7, 8, 9])
    assert result.failures == {"bad": f"{TEXT}, first in: embed"}
    assert result.sampled_token_ids == [[5], [], []]
    assert sorted(result.logprobs) == ["a"]
    assert sorted(result.prompt_logprobs) == ["a", "b"]
    assert runner.model.looked_at == [[0, 1, 2, 0, 1, 2, 0, 1]]


def test_a_row_in_the_middle_of_a_prompt_is_enough() -> None:
    """Of prompt logprobs: the step chooses no token yet."""
    runner = Runner()
    result = runner.step({"a": 3, "bad": 3}, a=[1, 2, 3], bad=[1, BAD, 3, 4, 5])
    assert sorted(result.failures) == ["bad"]
    assert sorted(result.prompt_logprobs) == ["a"]


def test_finite_up_to_the_logits() -> None:
    runner = Runner()
    result = runner.step({"bad": 2, "other": 1}, bad=[1, HEAD], other=[HEAD])
    assert result.failures == dict.fromkeys(["bad", "other"], f"{TEXT}, first in: logits")


@pytest.mark.parametrize("place", [0, 1, 20, 38])
def test_what_an_earlier_step_left_is_searched_for(place: int) -> None:
    """The failed step sees no more than that attention reads something that is not finite."""
    runner = Runner()
    prompt = list(range(40))
    prompt[place] = BAD
    work = {"bad": 39, "a": 1}
    runner.model.notices = False
    assert runner.step(work, bad=prompt, a=[1, 2]).failures == {}
    runner.model.notices = True
    assert runner.step({"a": 1, "bad": 1}).failures == {"bad": f"{TEXT}, first in: embed"}
    first, *searched = runner.model.looked_at
    assert first == [1, 39]
    assert len(searched) <= 6
    assert all(len(positions) == 1 for positions in searched)


def test_where_is_unknown_if_the_step_cannot_be_repeated() -> None:
    runner = Runner()
    runner.model.error = "out of memory"
    result = runner.step({"a": 1, "bad": 1}, a=[1], bad=[BAD])
    assert result.failures == {"bad": TEXT}
    assert result.sampled_token_ids == [[5], []]
