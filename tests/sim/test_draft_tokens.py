"""Draft tokens, right or wrong, change neither tokens nor log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import LLM, SamplingParams
from quire.backends.base import StepOutput
from quire.protocol import StepResult
from quire.scheduler.request import Request
from quire.scheduler.step_planner import StepPlanner
from quire.worker.model_runner import BegunStep, ModelRunner

RANDOM = np.random.default_rng(5)
PROMPTS = [RANDOM.integers(0, 256, length).tolist() for length in (1, 15, 16, 17, 40, 75)]
ANY: dict[str, Any] = {"ignore_eos": True, "logprobs": 2, "max_tokens": 24}
PARAMS = [
    SamplingParams(temperature=0, **ANY),
    SamplingParams(temperature=1.0, seed=7, top_p=0.95, min_p=0.01, **ANY),
    SamplingParams(temperature=0.8, seed=8, frequency_penalty=0.5, repetition_penalty=1.3, **ANY),
    SamplingParams(temperature=1.0, seed=9, min_tokens=8, stop_token_ids=[*range(90)], **ANY),
    SamplingParams(temperature=0, prompt_logprobs=1, logit_bias={7: 3.0}, **ANY),
    SamplingParams(temperature=0.5, seed=3, trace_decode_token_ids=[5, 6, 7], **ANY),
]


def answers(model_dir: Path, **options: Any) -> list[Any]:
    with LLM(str(model_dir), max_model_len=128, num_threads=1, max_num_seqs=9, **options) as llm:
        prompts = [prompt for prompt in PROMPTS for _ in PARAMS]
        outputs = llm.generate(prompts, PARAMS * len(PROMPTS), use_tqdm=False)
        llm.llm_engine.engine_core.scheduler.check_integrity()
    return [
        (one.prompt_logprobs, one.outputs[0].token_ids, one.outputs[0].logprobs,
         one.outputs[0].finish_reason)
        for one in outputs
    ]  # fmt: skip


@pytest.fixture(scope="module")
def wanted(model_dir: Path, backend: str) -> list[Any]:
    return answers(model_dir, backend=backend)


@pytest.mark.parametrize(
    "options", [{}, {"max_num_batched_tokens": 16}, {"num_gpu_blocks_override": 16}]
)
@pytest.mark.parametrize("chance", [0.0, 0.6, 1.0])
def test_any_draft_gives_the_same_tokens(
    model_dir: Path,
    backend: str,
    wanted: list[Any],
    options: dict[str, Any],
    chance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The guesses are the tokens that come, each with a chance; the others are wrong."""
    texts = [
        [*prompt, *answer[1]]
        for prompt, answer in zip([one for one in PROMPTS for _ in PARAMS], wanted, strict=True)
    ]
    random = np.random.default_rng(4)
    plan_running, finish = StepPlanner._plan_running, ModelRunner.finish
    seen = dict.fromkeys(("plans", "right", "wrong"), 0)

    def guess(planner: StepPlanner, step: Any, running: Sequence[Request]) -> None:
        for request in running:
            text = next(t for t in texts if t[: request.num_tokens] == request.token_ids)
            coming = text[request.num_tokens : request.num_tokens + int(random.integers(1, 6))]
            request.draft_token_ids = [
                token if random.random() < chance else (token + 1) % 256 for token in coming
            ]
        plan_running(planner, step, running)

    def counted(runner: ModelRunner, begun: BegunStep, output: StepOutput) -> StepResult:
        plan, result = begun.plan, finish(runner, begun, output)
        for request_id, drafts in plan.draft_token_ids.items():
            num_kept = len(result.sampled_token_ids[plan.request_ids.index(request_id)]) - 1
            seen["plans"] += 1
            seen["right"] += num_kept
            seen["wrong"] += len(drafts) - num_kept
        return result

    monkeypatch.setattr(StepPlanner, "_plan_running", guess)
    monkeypatch.setattr(ModelRunner, "finish", counted)
    assert answers(model_dir, backend=backend, **options) == wanted
    assert seen["plans"] > 50
    assert (seen["right"] > 0) == (chance > 0)
    assert seen["wrong"] > 0 or chance == 1
