"""`trace_decode_token_ids`: an output that is given, with the model's own log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.errors import RequestError
from quire.llm import LLM
from quire.outputs import CompletionOutput
from quire.params import SamplingParams

PROMPT = [5, 40, 41, 7]
TRACE = [60, 256, 61, 61, 9, 70]


@pytest.fixture(scope="module")
def llm(model_dir: Path, backend: str) -> Iterator[LLM]:
    with LLM(str(model_dir), backend=backend, max_model_len=16, num_threads=1) as llm:
        yield llm


def output(llm: LLM, **fields: Any) -> CompletionOutput:
    params = SamplingParams(trace_decode_token_ids=TRACE, seed=3, **fields)
    [found] = llm.generate([PROMPT], params, use_tqdm=False)
    return found.outputs[0]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.0},
        {"max_tokens": None},
        {"allowed_token_ids": [1, 2], "logit_bias": {9: -100.0}, "repetition_penalty": 2.0},
        {"stop": ["a", "b", "c"], "stop_token_ids": [61], "min_tokens": 3},
    ],
    ids=str,
)
def test_the_output_is_the_trace(llm: LLM, fields: dict[str, Any]) -> None:
    """End tokens and stop strings do not end it, and no other field changes a token."""
    assert 256 in llm.llm_engine.model_config.eos_token_ids
    found = output(llm, **fields)
    assert (list(found.token_ids), found.finish_reason) == (TRACE, "length")


def test_it_ends_where_the_request_or_the_context_does(llm: LLM) -> None:
    assert list(output(llm, max_tokens=2).token_ids) == TRACE[:2]
    params = SamplingParams(trace_decode_token_ids=TRACE, max_tokens=None)
    [found] = llm.generate([PROMPT * 3], params, use_tqdm=False)
    assert list(found.outputs[0].token_ids) == TRACE[:4]


def test_log_probabilities_are_the_models_own(llm: LLM) -> None:
    found = output(llm, logprobs=1, temperature=0.7)
    wanted = SamplingParams(max_tokens=1, prompt_logprobs=1)
    [read] = llm.generate([PROMPT + TRACE], wanted, use_tqdm=False)
    assert found.logprobs is not None
    assert read.prompt_logprobs is not None
    for place, token_id in enumerate(TRACE):
        own = read.prompt_logprobs[len(PROMPT) + place]
        assert own is not None
        assert found.logprobs[place][token_id].logprob == own[token_id].logprob


def test_tokens_that_the_model_lacks_are_refused(llm: LLM) -> None:
    params = SamplingParams(trace_decode_token_ids=[1, 10**6])
    with pytest.raises(RequestError, match="trace_decode_token_ids contain out-of-vocab"):
        llm.generate([PROMPT], params, use_tqdm=False)
