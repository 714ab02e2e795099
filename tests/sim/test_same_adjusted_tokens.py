"""Requests that change their logits: the same bits whatever runs beside them, and no trace of them
in the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.llm import LLM
from quire.outputs import RequestOutput
from quire.params import SamplingParams
from quire.repetition import RepetitionDetectionParams

RANDOM = np.random.default_rng(5)
PROMPTS = [RANDOM.integers(0, 256, length).tolist() for length in (3, 17, 40, 9, 64, 75, 21, 30)]
CHANGES: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.3, "temperature": 0},
    {"logit_bias": {5: 3.0, 9: -100, 255: 1.5}},
    {"frequency_penalty": 0.8, "presence_penalty": -0.3, "temperature": 0},
    {"allowed_token_ids": [*range(0, 256, 3)], "temperature": 0},
    {"bad_words": ["a", "bc"], "repetition_penalty": 0.8},
    {"temperature": 0},
    {"presence_penalty": 2.0, "repetition_penalty": 1.1, "allowed_token_ids": [*range(200)],
     "logit_bias": {7: 4}, "min_tokens": 20, "stop_token_ids": [7]},
]  # fmt: skip
PARAMS = [
    SamplingParams(**{"seed": 3, "max_tokens": 30, "ignore_eos": True, "logprobs": 2, **change})
    for change in CHANGES
]


@pytest.fixture(scope="module")
def settings(model_dir: Path, backend: str) -> dict[str, Any]:
    return {"model": str(model_dir), "backend": backend, "max_model_len": 128, "num_threads": 1}


@pytest.fixture(scope="module")
def alone(settings: dict[str, Any]) -> list[RequestOutput]:
    """One request at a time, and no prefix cache."""
    with LLM(**settings, max_num_seqs=1, enable_prefix_caching=False) as llm:
        return llm.generate(PROMPTS, PARAMS, use_tqdm=False)


def bits(outputs: list[RequestOutput]) -> list[Any]:
    """Tokens and exact log-probabilities."""
    return [(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs]


def test_what_was_asked_for_happens(alone: list[RequestOutput]) -> None:
    plain = alone[6].outputs[0].token_ids
    tokens = [output.outputs[0].token_ids for output in alone]
    assert len(set(tokens[1])) > len(set(plain)) * 0.5
    assert 9 not in tokens[2]
    assert all(token % 3 == 0 for token in tokens[4])
    text = alone[5].outputs[0].text
    assert "a" not in text
    assert "bc" not in text
    assert max(tokens[7]) < 200
    assert 7 not in tokens[7][:20]


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_seqs": 32, "num_threads": 2},
        {"max_num_batched_tokens": 7},
        {"max_num_seqs": 3},
    ],
    ids=str,
)
def test_in_company(
    settings: dict[str, Any], alone: list[RequestOutput], options: dict[str, Any]
) -> None:
    with LLM(**{**settings, **options}) as llm:
        outputs = llm.generate(PROMPTS * 2, PARAMS * 2, use_tqdm=False)
    assert bits(outputs) == bits(alone) * 2


def test_after_preemptions(settings: dict[str, Any], alone: list[RequestOutput]) -> None:
    with LLM(**settings, num_gpu_blocks_override=12) as llm:
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    preempted = [output.metrics.num_preemptions for output in outputs if output.metrics]
    assert any(preempted[index] for index in (1, 2, 3, 4, 5, 7))
    assert bits(outputs) == bits(alone)


def test_a_request_without_changes_among_those_with_some(
    settings: dict[str, Any], alone: list[RequestOutput]
) -> None:
    """The same tokens and log-probabilities as among its like."""
    with LLM(**settings) as llm:
        outputs = llm.generate(PROMPTS, [PARAMS[0]] * len(PROMPTS), use_tqdm=False)
    assert bits(outputs)[0] == bits(alone)[0]


def test_an_output_that_repeats_itself_ends(settings: dict[str, Any]) -> None:
    common = {"temperature": 0, "max_tokens": 40, "allowed_token_ids": [65], "ignore_eos": True}
    detection = RepetitionDetectionParams(max_pattern_size=3, min_count=4)
    params = [
        SamplingParams(**common, repetition_detection=detection),  # type: ignore[arg-type]
        SamplingParams(**common, repetition_detection=detection, min_tokens=9),  # type: ignore[arg-type]
        SamplingParams(**common),  # type: ignore[arg-type]
    ]
    with LLM(**settings) as llm:
        outputs = llm.generate(PROMPTS[:3], params, use_tqdm=False)
    ends = [(len(one.token_ids), one.finish_reason, one.stop_reason) for [one] in
            (output.outputs for output in outputs)]  # fmt: skip
    repetition = ("repetition", "repetition_detected")
    assert ends == [(4, *repetition), (9, *repetition), (40, "length", None)]
