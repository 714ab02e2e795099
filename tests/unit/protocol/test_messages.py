"""Every message crosses a process border unchanged."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quire.params import RequestOutputKind, SamplingParams
from quire.protocol import (
    CacheScope,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    ScheduledRequest,
    SchedulePlan,
    SchedulerStats,
    StepResult,
    TokenLogprobs,
)

PARAMS = SamplingParams(
    seed=2**64 - 1, stop=["a"], stop_token_ids=[3], min_tokens=2, logprobs=1,
    output_kind=RequestOutputKind.DELTA,
)  # fmt: skip
LOGPROBS = [TokenLogprobs([1, 2], [-0.5, -1.5], [1, 2])]
MESSAGES = [
    EngineCoreRequest(
        request_id="a", prompt_token_ids=[1, 2], sampling_params=PARAMS, arrival_time=1.5,
        stop_token_ids=[7], eos_token_ids=[7], scope=CacheScope("s"), priority=-3,
    ),
    SchedulePlan(
        request_ids=["a", "b"],
        num_scheduled_tokens=[5, 1],
        started={
            "a": ScheduledRequest(
                request_id="a", token_ids=[1, 2, 3, 4, 5], num_prompt_tokens=4,
                sampling_params=PARAMS, block_ids=[[9], [8]], first_entries=[0, 0],
                num_computed_tokens=0, banned_token_ids=[7],
            )
        },
        new_block_ids={"b": [[3], [4]]},
        released_request_ids=["c"],
    ),
    StepResult(sampled_token_ids=[[], [4]], logprobs={"b": LOGPROBS}),
    EngineCoreOutputs(
        outputs=[
            EngineCoreOutput(
                request_id="a", new_token_ids=[4], logprobs=LOGPROBS, finish_reason="stop",
                stop_reason=7, num_cached_tokens=16, num_preemptions=1, scheduled_time=2.5,
                error="e",
            )
        ],
        stats=SchedulerStats(num_running=1, num_waiting=2, kv_cache_usage=0.5),
        timestamp=3.5,
    ),
]  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_round_trip(message: Any) -> None:
    data = msgspec.msgpack.encode(message)
    assert msgspec.msgpack.decode(data, type=type(message)) == message


def test_a_plan_counts_its_tokens() -> None:
    plan = MESSAGES[1]
    assert isinstance(plan, SchedulePlan)
    assert plan.total_num_scheduled_tokens == 6
