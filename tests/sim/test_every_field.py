"""Every field of `SamplingParams`: the same bits alone as beside requests with all the others.

A field that is not in the table below fails the first test.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from quire.llm import LLM
from quire.outputs import CompletionOutput, RequestOutput
from quire.params import NOT_YET, RequestOutputKind, SamplingParams
from quire.structured.params import StructuredOutputsParams

RANDOM = np.random.default_rng(8)
BEGIN = 27
"""The token `<`, which begins reasoning here."""
LONG, SHORT = [[*RANDOM.integers(0, 256, size).tolist(), BEGIN] for size in (36, 5)]
BASE: dict[str, Any] = {"seed": 11, "max_tokens": 14, "ignore_eos": True, "logprobs": 2}
FIELDS: dict[str, list[Any]] = {
    "n": [2, 3],
    "presence_penalty": [-2, 0.5, 2],
    "frequency_penalty": [-2, 0.5, 2],
    "repetition_penalty": [1e-3, 0.7, 1.5, 1e3],
    "temperature": [0, 0.01, 0.5, 2],
    "top_p": [1e-6, 0.5, 0.95],
    "top_k": [1, 3, 50, -1],
    "min_p": [0.01, 0.5, 1],
    "seed": [0, -2, 2**64 - 1],
    "stop": ["a", ["b", "cd"]],
    "stop_token_ids": [[5, 90], [*range(0, 256, 4)]],
    "ignore_eos": [False],
    "max_tokens": [1, 20],
    "min_tokens": [5],
    "logprobs": [None, 0, 5],
    "prompt_logprobs": [0, 3],
    "logprob_token_ids": [[9, 4], [255]],
    "flat_logprobs": [True],
    "detokenize": [False],
    "skip_special_tokens": [False],
    "spaces_between_special_tokens": [False],
    "include_stop_str_in_output": [True],
    "output_kind": [*RequestOutputKind],
    "stream_interval": [1, 5],
    "skip_clone": [True],
    "structured_outputs": [
        StructuredOutputsParams(regex="[a-z]{9,}"), StructuredOutputsParams(choice=["yes", "no"]),
    ],
    "logit_bias": [{7: 4.0, 9: -100.0}, {3: 100.0}],
    "allowed_token_ids": [[65], [*range(30, 90)]],
    "extra_args": [{"any": ["thing"]}],
    "bad_words": [["a", "bc"], ["x" * 9]],
    "skip_reading_prefix_cache": [True, False],
    "thinking_token_budget": [0, 3],
    "repetition_detection": [{"max_pattern_size": 2, "min_count": 2}],
    "repeat_last_n": [0, 1, 4, -1],
    "trace_decode_token_ids": [[65, 256, 66], [*range(70, 90)]],
}  # fmt: skip
BESIDE: dict[str, dict[str, Any]] = {
    "stop": {"temperature": 2},
    "bad_words": {"allowed_token_ids": [*range(60, 100)]},
    "logprob_token_ids": {"logprobs": None},
    "ignore_eos": {"logit_bias": {256: 9.0}},
    "structured_outputs": {"ignore_eos": False},
    "include_stop_str_in_output": {"stop": ["a", "b", "c", "d", "e"]},
    "repeat_last_n": {"repetition_penalty": 1.5, "frequency_penalty": 1, "presence_penalty": 0.5},
    "repetition_detection": {"allowed_token_ids": [65, 66]},
    "min_tokens": {"stop_token_ids": [*range(128)], "ignore_eos": False},
}
"""What must be set too, for a field to have an effect or to be accepted."""
NOT_SAMPLED = set(NOT_YET) | {
    "_bad_words_token_ids", "_kept_token_ids", "_never_generated", "_reasoning",
    "_timestamps", "_gives_rows",  # of speech models: test_whisper_sameness.py
    "routed_experts_prompt_start",
}  # fmt: skip
"""Fields that no request may use, results of `bad_words`, and fields that the engine ignores."""


def cases() -> list[dict[str, Any]]:
    return [
        {**BASE, **BESIDE.get(name, {}), name: value}
        for name, values in FIELDS.items()
        for value in values
    ]


def test_no_field_is_forgotten() -> None:
    fields = {field.name for field in msgspec.structs.fields(SamplingParams)}
    assert fields == FIELDS.keys() | NOT_SAMPLED
    base = SamplingParams(**BASE)
    for name, values in FIELDS.items():
        assert [value for value in values if value != getattr(base, name)], name


@pytest.fixture(scope="module")
def settings(model_dir: Path, backend: str) -> dict[str, Any]:
    return {
        "model": str(model_dir), "backend": backend, "max_model_len": 64, "num_threads": 1,
        "dtype": "float32",
        "reasoning_config": {"reasoning_start_str": "<", "reasoning_end_str": ">"},
    }  # fmt: skip


@pytest.fixture(scope="module")
def requests() -> tuple[Any, list[SamplingParams]]:
    """Every third has a long prompt, which is computed in pieces."""
    params = [SamplingParams(**case) for case in [BASE, *cases()]]
    inputs = [{"prompt_token_ids": SHORT if index % 3 else LONG} for index in range(len(params))]
    return inputs, params


@pytest.fixture(scope="module")
def alone(settings: dict[str, Any], requests: tuple[Any, Any]) -> Iterator[list[Any]]:
    """One at a time, and no prefix cache."""
    with LLM(**settings, max_num_seqs=1, enable_prefix_caching=False) as llm:
        yield [bits(one) for one in llm.generate(*requests, use_tqdm=False)]


def bits(output: RequestOutput) -> Any:
    """All that the request's tokens decide."""
    return output.prompt_logprobs, [everything(one) for one in output.outputs]


def everything(one: CompletionOutput) -> Any:
    return (
        list(one.token_ids), one.text, one.logprobs, one.cumulative_logprob, one.finish_reason,
        one.stop_reason,
    )  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "options",
    [{"max_num_seqs": 128}, {"max_num_seqs": 7, "max_num_batched_tokens": 11, "num_threads": 2}],
    ids=["all in one batch", "in pieces"],
)
def test_in_company_of_all_fields(
    settings: dict[str, Any], requests: tuple[Any, Any], alone: list[Any], options: dict[str, Any]
) -> None:
    with LLM(**{**settings, **options}) as llm:
        found = [bits(one) for one in llm.generate(*requests, use_tqdm=False)]
    for params, ours, theirs in zip(requests[1], found, alone, strict=True):
        assert ours == theirs, params


def test_the_fields_do_something(alone: list[Any]) -> None:
    """Otherwise the others would prove little."""
    base, by_field = alone[0], dict.fromkeys(FIELDS, 0)
    names = [name for name, values in FIELDS.items() for _ in values]
    for name, found in zip(names, alone[1:], strict=True):
        by_field[name] += found[1] != base[1] or found[0] != base[0]
    without_effect = {name for name, count in by_field.items() if not count}
    assert without_effect <= {
        "flat_logprobs", "skip_special_tokens", "spaces_between_special_tokens", "output_kind",
        "stream_interval", "skip_clone", "extra_args", "skip_reading_prefix_cache",
    }  # fmt: skip
