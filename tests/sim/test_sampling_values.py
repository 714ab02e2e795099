"""Any value of any sampling field: it works, or the error names the field."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.errors import RequestError
from quire.llm import LLM
from quire.params import SamplingParams

VOCAB = 288
NUMBERS: list[Any] = [
    -1, 0, 1, 2, -2, 0.5, 1e-60, 1e300, VOCAB - 1, VOCAB, 128, 129, 2**31, 2**63 - 1, 2**63, 2**64,
    -(2**63) - 1, 10**400, math.nan, math.inf, -math.inf, True, None, "1", b"1", [], {}, object(),
]  # fmt: skip
FIELDS = (
    "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "top_k",
    "min_p", "seed", "min_tokens", "max_tokens", "logprobs", "prompt_logprobs",
)  # fmt: skip
LISTS = ("allowed_token_ids", "logprob_token_ids", "stop_token_ids", "bad_words", "stop")


@pytest.fixture(scope="module")
def llm(model_dir: Path, backend: str) -> Iterator[LLM]:
    with LLM(
        str(model_dir), backend=backend, max_model_len=32, num_threads=1, num_gpu_blocks_override=16
    ) as made:
        yield made


def check(llm: LLM, field: str, value: Any, **others: Any) -> None:
    """It gives tokens of the model, or an error of the caller that says which field it was."""
    refusal, tokens = None, [0]
    try:
        params = SamplingParams(**{"max_tokens": 3, "ignore_eos": True, **others, field: value})
        [output] = llm.generate({"prompt_token_ids": [5, 6, 7]}, params, use_tqdm=False)
        tokens = output.outputs[0].token_ids
    except RequestError as error:
        refusal = error
    if refusal is not None:
        assert (refusal.parameter or "").split(".")[0] == field, (field, value, refusal)
    assert 1 <= len(tokens) <= 29, (field, value)
    assert all(0 <= token_id < VOCAB for token_id in tokens), (field, value)


@pytest.mark.parametrize("temperature", [0, 0.8])
@pytest.mark.parametrize("field", FIELDS)
def test_numbers(llm: LLM, field: str, temperature: float) -> None:
    for value in NUMBERS:
        check(llm, field, value, **({} if field == "temperature" else {"temperature": temperature}))


@pytest.mark.parametrize("field", LISTS)
def test_lists(llm: LLM, field: str) -> None:
    for value in NUMBERS:
        check(llm, field, value)
        check(llm, field, [value])
        check(llm, field, [1, value])


def test_dicts(llm: LLM) -> None:
    for value in NUMBERS:
        check(llm, "logit_bias", value)
        check(llm, "logit_bias", {5: value})
        if not isinstance(value, list | dict):
            check(llm, "logit_bias", {value: 1})
        check(llm, "extra_args", value)
        check(llm, "extra_args", {"a": value})
        check(llm, "repetition_detection", value)
        for name in ("max_pattern_size", "min_pattern_size", "min_count"):
            given = {"max_pattern_size": 2, "min_count": 2, name: value}
            check(llm, "repetition_detection", given)


def test_penalties_together_at_their_ends(llm: LLM) -> None:
    for repetition in (1e-300, 1e-30, 1, 1e30, 1e300):
        for bias in (-100, 100):
            for temperature in (0, 0.01, 2):
                others = {"presence_penalty": -2, "frequency_penalty": 2, "logprobs": 3, "seed": 1}
                others |= {"temperature": temperature, "logit_bias": {5: bias, 6: -bias}}
                check(llm, "repetition_penalty", repetition, **others)


@pytest.mark.parametrize("penalty", [1e-300, 1e300])
@pytest.mark.parametrize("temperature", [0, 0.01, 2])
def test_the_only_allowed_token_is_chosen_under_any_penalty(
    llm: LLM, penalty: float, temperature: float
) -> None:
    """Each token once: some have a negative logit."""
    params = [
        SamplingParams(
            allowed_token_ids=[token], repetition_penalty=penalty, temperature=temperature,
            seed=1, max_tokens=2, ignore_eos=True,
        )
        for token in range(0, 256, 5)
    ]  # fmt: skip
    inputs: Any = [{"prompt_token_ids": [token, 7]} for token in range(0, 256, 5)]
    outputs = llm.generate(inputs, params, use_tqdm=False)
    for token, output in zip(range(0, 256, 5), outputs, strict=True):
        assert list(output.outputs[0].token_ids) == [token, token]
