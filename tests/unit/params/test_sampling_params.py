"""SamplingParams: vLLM's defaults, rules and messages, and refusals instead of silence."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from quire.errors import RequestError
from quire.params import RequestOutputKind, SamplingParams, SamplingType


def test_defaults_are_the_documented_ones() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k) == (1, 1.0, 1.0, 0)
    assert (params.max_tokens, params.min_tokens, params.logprobs) == (16, 0, None)
    assert params.stop == []
    assert params.stop_token_ids == []
    assert params.output_kind is RequestOutputKind.CUMULATIVE


def test_positional_arguments_follow_the_published_order() -> None:
    params = SamplingParams(2, 0.0, 0.0, 1.0, 0.5)
    assert params.n == 2
    assert params.temperature == 0.5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n": 0}, "n must be at least 1, got 0."),
        ({"n": 1.5}, "n must be an int, but is of type <class 'float'>"),
        ({"n": True}, "n must be an int, but is of type <class 'bool'>"),
        ({"n": 16385}, "n must be at most 16384, got 16385."),
        ({"n": 2, "temperature": 0}, "n must be 1 when using greedy sampling, got 2."),
        ({"temperature": math.nan}, "temperature must be a finite number, got nan."),
        ({"temperature": math.inf}, "temperature must be a finite number, got inf."),
        ({"temperature": -0.1}, "temperature must be non-negative, got -0.1."),
        ({"temperature": 2.5}, "temperature must be in [0, 2], got 2.5."),
        ({"temperature": "hot"}, "temperature must be a number, got 'hot'."),
        ({"temperature": True}, "temperature must be a number, got True."),
        ({"temperature": 10**400}, "temperature must be a finite number"),
        ({"top_p": 0.0}, "top_p must be in (0, 1], got 0.0."),
        ({"top_p": 1.1}, "top_p must be in (0, 1], got 1.1."),
        ({"top_p": math.nan}, "top_p must be in (0, 1], got nan."),
        ({"top_k": -2}, "top_k must be 0 (disable), or at least 1, got -2."),
        ({"top_k": 1.0}, "top_k must be an integer, got float"),
        ({"min_p": 1.5}, "min_p must be in [0, 1], got 1.5."),
        ({"min_p": math.nan}, "min_p must be in [0, 1], got nan."),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0."),
        ({"max_tokens": "9"}, "max_tokens must be an integer, got str"),
        ({"min_tokens": -1}, "min_tokens must be greater than or equal to 0, got -1."),
        (
            {"min_tokens": 20},
            "min_tokens must be less than or equal to max_tokens=16, got 20.",
        ),
        ({"stream_interval": 0}, "stream_interval must be at least 1, got 0."),
        ({"logprobs": -2}, "logprobs must be non-negative or -1, got -2."),
        ({"stop": ""}, "stop cannot contain an empty string."),
        ({"stop": ["a", ""]}, "stop cannot contain an empty string."),
        ({"stop": [3]}, "stop must be a string or a list of strings"),
        ({"stop": "a", "detokenize": False}, "stop strings are only supported when detokenize"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids must contain only integers, got ['a']."),
        ({"seed": 2**64}, "seed must fit in 64 bits"),
        ({"ignore_eos": 1}, "ignore_eos must be True or False, got 1."),
        ({"output_kind": 2}, "output_kind must be a RequestOutputKind, got 2."),
    ],
)
def test_a_wrong_value_is_named_with_its_rule(given: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**given)  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert caught.value.parameter in given


@pytest.mark.parametrize(
    "given",
    [
        {"presence_penalty": 0.5},
        {"frequency_penalty": math.nan},
        {"repetition_penalty": 1.1},
        {"logit_bias": {5: 1.0}},
        {"bad_words": ["x"]},
        {"prompt_logprob_start": 1},
        {"allowed_token_ids": []},
        {"structured_outputs": {"json": {}}},
        {"extra_args": {"a": 1}},
        {"logprob_token_ids": [1]},
        {"presence_penalty": False},
    ],
)
def test_what_does_not_work_yet_is_refused_not_ignored(given: dict[str, object]) -> None:
    with pytest.raises(RequestError, match=f"{next(iter(given))} is not supported yet"):
        SamplingParams(**given)  # type: ignore[arg-type]


def test_neutral_values_of_unimplemented_fields_pass() -> None:
    SamplingParams(
        presence_penalty=0, repetition_penalty=1, logit_bias={}, bad_words=[], extra_args={}
    )


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(TypeError, match="no field 'temprature'; did you mean temperature"):
        SamplingParams(temprature=1.0)  # type: ignore[call-arg]


def test_greedy_switches_the_filters_off() -> None:
    params = SamplingParams(temperature=0, top_p=0.5, top_k=3, min_p=0.1)
    assert (params.top_p, params.top_k, params.min_p) == (1.0, 0, 0.0)
    assert params.sampling_type is SamplingType.GREEDY


def test_values_are_normalised() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        max_tokens=np.int64(7),  # type: ignore[arg-type]
        stop="x",
        stop_token_ids=(3, 3, 1),  # type: ignore[arg-type]
        logprobs=True,
        seed=-1,
    )
    assert type(params.temperature) is float
    assert type(params.max_tokens) is int
    assert params.stop == ["x"]
    assert params.stop_token_ids == [3, 1]
    assert params.logprobs == 1
    assert params.seed is None


def test_a_tiny_temperature_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    import logging

    logger = logging.getLogger("quire")
    logger.addHandler(caplog.handler)
    try:
        assert SamplingParams(temperature=0.001).temperature == 0.01
    finally:
        logger.removeHandler(caplog.handler)
    assert "maxed it out" in caplog.text


def test_held_back_text_is_one_less_than_the_longest_stop() -> None:
    assert SamplingParams(stop=["ab", "abcd"]).output_text_buffer_length == 3
    assert (
        SamplingParams(stop="abcd", include_stop_str_in_output=True).output_text_buffer_length == 0
    )
    assert SamplingParams().output_text_buffer_length == 0


def test_clone_is_independent_unless_told_otherwise() -> None:
    params = SamplingParams(stop_token_ids=[1])
    copied = params.clone()
    copied.stop_token_ids.append(2)  # type: ignore[union-attr]
    assert params.stop_token_ids == [1]
    shared = SamplingParams(stop_token_ids=[1], skip_clone=True)
    assert shared.clone().stop_token_ids is shared.stop_token_ids


def test_from_optional_takes_none_for_defaults() -> None:
    params = SamplingParams.from_optional(temperature=None, top_p=None, n=None, max_tokens=None)
    assert (params.temperature, params.top_p, params.n) == (1.0, 1.0, 1)
    assert params.max_tokens is None


def test_generation_config_adds_further_end_tokens() -> None:
    params = SamplingParams(stop_token_ids=[9])
    params.update_from_generation_config({"eos_token_id": [2, 5]}, eos_token_id=2)
    assert params.stop_token_ids == [9, 5]
    ignoring = SamplingParams(ignore_eos=True)
    ignoring.update_from_generation_config({"eos_token_id": [2, 5]}, eos_token_id=2)
    assert ignoring.stop_token_ids == []


def test_it_crosses_a_process_border_unchanged() -> None:
    params = SamplingParams(
        temperature=0.3, stop=["x"], seed=7, logprobs=2, output_kind=RequestOutputKind.DELTA
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_a_field_assigned_later_is_checked_by_verify() -> None:
    params = SamplingParams()
    params.temperature = math.nan
    with pytest.raises(RequestError, match="finite"):
        params.verify()
