"""Budgets of reasoning on real models: its end comes after so many tokens, and everything else is
as without one, whatever runs beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.errors import RequestError
from quire.executor import UniProcExecutor
from quire.llm import LLM
from quire.outputs import RequestOutput
from quire.params import SamplingParams
from quire.reasoning.marks import ReasoningMarks

BEGIN, END = "<think>", "</think>"
CONFIG = {"reasoning_parser": "qwen3", "reasoning_end_str": f"Enough.{END}"}
RANDOM = np.random.default_rng(5)


def ids(text: str) -> list[int]:
    """Of printable characters without spaces, as the tiny tokenizer has them."""
    return [ord(char) - ord("!") for char in text]


FORCED = ids("Enough." + END)
WORDS = [RANDOM.integers(0, 94, length).tolist() for length in (3, 40, 17, 64)]
OPENED = [words + ids(BEGIN) for words in WORDS]
BUDGETS = [0, 1, 5, 20]
TEMPERATURES = [0.0, 1.0]
CASES = [
    (prompt, temperature, budget)
    for prompt in OPENED
    for temperature in TEMPERATURES
    for budget in BUDGETS
]


def params_of(budget: int | None, temperature: float = 1.0, **changes: Any) -> SamplingParams:
    values = {"seed": 3, "max_tokens": 50, "ignore_eos": True, "logprobs": 1, **changes}
    return SamplingParams(temperature=temperature, thinking_token_budget=budget, **values)


def generate(llm: LLM) -> list[RequestOutput]:
    params = [params_of(budget, temperature) for _, temperature, budget in CASES]
    outputs = llm.generate([prompt for prompt, _, _ in CASES], params, use_tqdm=False)
    llm.llm_engine.engine_core.scheduler.check_integrity()
    return outputs


def bits(outputs: list[RequestOutput]) -> list[Any]:
    """Tokens and exact log-probabilities."""
    return [(one.token_ids, one.logprobs) for output in outputs for one in output.outputs]


@pytest.fixture(scope="module")
def settings(model_dir: Path, backend: str) -> dict[str, Any]:
    return {
        "model": str(model_dir), "backend": backend, "max_model_len": 192, "num_threads": 1,
        "reasoning_config": CONFIG,
    }  # fmt: skip


@pytest.fixture(scope="module")
def one_by_one(settings: dict[str, Any]) -> Iterator[LLM]:
    with LLM(**settings, max_num_seqs=1, enable_prefix_caching=False) as llm:
        yield llm


@pytest.fixture(scope="module")
def alone(one_by_one: LLM) -> list[RequestOutput]:
    return generate(one_by_one)


@pytest.mark.sweep(1)
def test_the_end_comes_after_so_many_tokens(one_by_one: LLM, alone: list[RequestOutput]) -> None:
    free = {
        (tuple(prompt), temperature): one_by_one.generate(
            [prompt], params_of(None, temperature), use_tqdm=False
        )[0].outputs[0]
        for prompt in OPENED
        for temperature in TEMPERATURES
    }
    for output, (prompt, temperature, budget) in zip(alone, CASES, strict=True):
        [one], other = output.outputs, free[tuple(prompt), temperature]
        assert one.token_ids[:budget] == other.token_ids[:budget]
        assert one.logprobs is not None
        assert other.logprobs is not None
        assert list(one.logprobs)[:budget] == list(other.logprobs)[:budget]
        end = budget + len(FORCED)
        assert one.token_ids[budget:end] == FORCED
        assert one.token_ids[end : end + len(FORCED)] != FORCED
        assert len(one.token_ids) == 50


def test_a_forced_token_has_the_log_probability_that_the_model_gives_it(
    alone: list[RequestOutput], one_by_one: LLM
) -> None:
    [one] = alone[0].outputs
    params = SamplingParams(max_tokens=1, prompt_logprobs=1)
    [read] = one_by_one.generate([OPENED[0] + list(one.token_ids)], params, use_tqdm=False)
    assert one.logprobs is not None
    assert read.prompt_logprobs is not None
    place = len(OPENED[0])
    for index, token_id in enumerate(FORCED):
        wanted = read.prompt_logprobs[place + index][token_id].logprob  # type: ignore[index]
        assert one.logprobs[index][token_id].logprob == wanted


@pytest.mark.sweep(1)
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        {"max_num_seqs": 64, "num_threads": 2},
        {"max_num_batched_tokens": 7, "max_num_seqs": 5},
        {"num_gpu_blocks_override": 14},
    ],
    ids=str,
)
def test_in_company(
    settings: dict[str, Any],
    alone: list[RequestOutput],
    options: dict[str, Any],
    depth: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also cut into chunks, preempted, and, the second time, from the prefix cache."""
    monkeypatch.setattr(UniProcExecutor, "max_plans_in_flight", depth)
    with LLM(**{**settings, **options}) as llm:
        first, second = generate(llm), generate(llm)
    if "num_gpu_blocks_override" in options:
        assert any(one.metrics and one.metrics.num_preemptions for one in first)
    assert bits(first) == bits(alone)
    assert bits(second) == bits(alone)


def test_beside_logits_processors(settings: dict[str, Any], alone: list[RequestOutput]) -> None:
    processors = ["logits_processors:Ledger"]
    with LLM(**settings, logits_processors=processors) as llm:
        assert bits(generate(llm)) == bits(alone)


@pytest.mark.parametrize(
    "changes",
    [
        {"allowed_token_ids": [40, 41, 42]},
        {"bad_words": [END, "E"]},
        {"logit_bias": dict.fromkeys(FORCED, -100.0)},
        {"min_tokens": 30, "stop_token_ids": FORCED},
        {"prompt_logprobs": 1},
    ],
    ids=str,
)
def test_other_parameters_do_not_keep_the_reasoning_open(
    one_by_one: LLM, changes: dict[str, Any]
) -> None:
    params = params_of(5, **changes)
    [output] = one_by_one.generate([OPENED[0]], params, use_tqdm=False)
    assert output.outputs[0].token_ids[5 : 5 + len(FORCED)] == FORCED


def test_reasoning_that_the_prompt_has_counts(one_by_one: LLM) -> None:
    [output] = one_by_one.generate([OPENED[0] + [1, 2, 3]], params_of(5), use_tqdm=False)
    assert output.outputs[0].token_ids[2 : 2 + len(FORCED)] == FORCED


def test_no_reasoning_no_end(one_by_one: LLM) -> None:
    prompts = [WORDS[0], OPENED[0] + ids(END)]
    limited = one_by_one.generate(prompts, params_of(0, max_tokens=8), use_tqdm=False)
    free = one_by_one.generate(prompts, params_of(None, max_tokens=8), use_tqdm=False)
    assert bits(limited) == bits(free)


def test_what_a_server_says_of_the_prompt_counts(one_by_one: LLM) -> None:
    params = params_of(4)
    params.mark_reasoning(ReasoningMarks(BEGIN, END, is_open=True))
    [output] = one_by_one.generate([WORDS[0]], params, use_tqdm=False)
    assert output.outputs[0].token_ids[4 : 4 + len(FORCED)] == FORCED
    params = params_of(4)
    params.mark_reasoning(ReasoningMarks(BEGIN, END, is_open=False))
    [output] = one_by_one.generate([OPENED[0]], params, use_tqdm=False)
    assert output.outputs[0].token_ids[4 : 4 + len(FORCED)] != FORCED


def test_a_budget_needs_marks(settings: dict[str, Any]) -> None:
    with (
        LLM(**{**settings, "reasoning_config": None}) as llm,
        pytest.raises(RequestError, match="set --reasoning-parser or --reasoning-config"),
    ):
        llm.generate([OPENED[0]], params_of(5), use_tqdm=False)
