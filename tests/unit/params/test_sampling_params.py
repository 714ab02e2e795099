"""SamplingParams: vLLM's defaults, rules and messages, and refusals instead of silence."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from quire.errors import ConfigError, RequestError
from quire.param_checks import checked_json
from quire.params import RequestOutputKind, SamplingParams, SamplingType
from quire.repetition import RepetitionDetectionParams


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
        ({"presence_penalty": -2.01}, "presence_penalty must be in [-2, 2], got -2.01."),
        ({"presence_penalty": False}, "presence_penalty must be a number, got False."),
        ({"frequency_penalty": 2.01}, "frequency_penalty must be in [-2, 2], got 2.01."),
        ({"frequency_penalty": math.nan}, "frequency_penalty must be in [-2, 2], got nan."),
        ({"frequency_penalty": "1"}, "frequency_penalty must be a number, got '1'."),
        ({"repetition_penalty": 0}, "repetition_penalty must be greater than zero, got 0.0."),
        ({"repetition_penalty": -1}, "repetition_penalty must be greater than zero, got -1.0."),
        ({"repetition_penalty": math.inf}, "repetition_penalty must be a finite number, got inf."),
        ({"repetition_penalty": math.nan}, "repetition_penalty must be a finite number, got nan."),
        ({"repetition_penalty": 10**400}, "repetition_penalty must be a finite number"),
        ({"logit_bias": [5]}, "logit_bias must be a dict from token ids to numbers, got [5]."),
        (
            {"logit_bias": {"a": 1, 1.5: 2, True: 3, 4: 5}},
            "logit_bias contains key(s) that cannot be converted to integer token IDs: "
            "['a', 1.5, True]",
        ),
        ({"logit_bias": {5: "x"}}, "logit_bias must be a number, got 'x'."),
        ({"logit_bias": {5: True}}, "logit_bias must be a number, got True."),
        ({"logit_bias": {5: math.nan}}, "logit_bias must not be NaN, got it for 5."),
        ({"logit_bias": {5: 10**400}}, "logit_bias must be a finite number"),
        ({"allowed_token_ids": []}, "allowed_token_ids is not None and empty!"),
        ({"allowed_token_ids": 5}, "allowed_token_ids must be a list of token ids, got 5."),
        ({"allowed_token_ids": [1.0]}, "allowed_token_ids must contain only integers, got [1.0]."),
        ({"allowed_token_ids": [True]}, "allowed_token_ids must contain only integers"),
        ({"extra_args": [1]}, "extra_args must be a dict, got [1]."),
        ({"repetition_detection": 3}, "repetition_detection must be RepetitionDetectionParams or"),
        ({"repetition_detection": {"min": 3}}, "a dict of max_pattern_size, min_pattern_size, min"),
        ({"repetition_detection": {"max_pattern_size": -1}}, "min_pattern_size must be >=0, with"),
        (
            {"repetition_detection": {"max_pattern_size": 2, "min_pattern_size": 3}},
            "with min_pattern_size <= max_pattern_size.",
        ),
        (
            {"repetition_detection": {"max_pattern_size": 2, "min_count": 1}},
            "min_count must be >= 2 to detect repetitive patterns in engine output.",
        ),
        ({"logprob_token_ids": 5}, "logprob_token_ids must be a list of token ids, got 5."),
        ({"logprob_token_ids": ["a"]}, "logprob_token_ids must contain only integers, got ['a']."),
        ({"logprob_token_ids": [*range(129)]}, "of length 129, which is greater than max allowed"),
        (
            {"logprob_token_ids": [1, 2], "logprobs": 3},
            "logprobs must equal len(logprob_token_ids). Got logprobs=3, len(logprob_token_ids)=2.",
        ),
        ({"bad_words": "no"}, "bad_words must be a list of strings, got 'no'."),
        ({"bad_words": [5]}, "bad_words must be a list of strings, got [5]."),
        ({"bad_words": ["a", ""]}, "bad_words cannot contain an empty string. Got bad_words="),
        ({"bad_words": ["\ud800"]}, "bad_words must be valid Unicode"),
        ({"structured_outputs": 3}, "structured_outputs must be StructuredOutputsParam"),
        ({"trace_decode_token_ids": []}, "must be a non-empty list, got []."),
        ({"trace_decode_token_ids": "ab"}, "must be a non-empty list, got 'ab'."),
        ({"trace_decode_token_ids": [1, -1]}, "must contain non-negative integers, got [1, -1]."),
        ({"trace_decode_token_ids": [1, True]}, "must contain non-negative integers"),
        ({"trace_decode_token_ids": [1], "n": 2}, "trace_decode_token_ids requires n=1, got n=2."),
        *(
            ({"trace_decode_token_ids": [1], **other}, f"is not supported with {next(iter(other))}")
            for other in (
                {"prompt_logprobs": 0},
                {"bad_words": ["a"]},
                {"thinking_token_budget": 3},
                {"repetition_detection": {"max_pattern_size": 2, "min_count": 2}},
                {"structured_outputs": {"regex": "a"}},
            )
        ),
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
        {"prompt_logprob_start": 1},
        {"watermarking": True},
        {"prompt_logprob_token_ids": [[1]]},
    ],
)
def test_what_does_not_work_yet_is_refused_not_ignored(given: dict[str, object]) -> None:
    with pytest.raises(RequestError, match=f"{next(iter(given))} is not supported yet"):
        SamplingParams(**given)  # type: ignore[arg-type]


def test_neutral_values_of_unimplemented_fields_pass() -> None:
    SamplingParams(extra_args={}, thinking_token_budget=-1)


def test_a_field_of_outputs_that_are_not_told_passes() -> None:
    assert SamplingParams(routed_experts_prompt_start=3).routed_experts_prompt_start == 3
    with pytest.raises(RequestError, match="routed_experts_prompt_start"):
        SamplingParams(routed_experts_prompt_start="x")  # type: ignore[arg-type]


def test_a_trace_is_the_whole_output() -> None:
    params = SamplingParams(
        trace_decode_token_ids=(7, 7, 8), min_tokens=2, stop=["a"], stop_token_ids=[7]
    )
    copied = params.clone()
    copied.update_from_trace(10)
    assert (copied.max_tokens, copied.min_tokens, copied.ignore_eos) == (3, 0, True)
    assert copied.stop == copied.stop_token_ids == []
    assert params.trace_decode_token_ids == [7, 7, 8]
    copied.update_from_trace(2)
    assert (copied.trace_decode_token_ids, copied.max_tokens) == ([7, 7], 2)
    plain = SamplingParams(max_tokens=5)
    plain.update_from_trace(2)
    assert plain == SamplingParams(max_tokens=5)


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


def test_verify_takes_a_models_limits() -> None:
    class Limits:
        max_logprobs = 5

        def get_vocab_size(self) -> int:
            return 100

    SamplingParams(logprobs=5, logit_bias={99: 1.0}).verify(Limits(), None, None, None)
    for name, value in (
        ("logprobs", 6),
        ("prompt_logprobs", -1),
        ("logit_bias", {100: 1.0}),
        ("allowed_token_ids", [3, 100]),
        ("stop_token_ids", [100]),
        ("logprob_token_ids", [100]),
    ):
        with pytest.raises(RequestError) as raised:
            SamplingParams(**{name: value}).verify(Limits())
        assert raised.value.parameter == name


def test_a_bias_is_limited_and_its_ids_may_be_texts() -> None:
    given = {5: 1, "7": -math.inf, np.int64(9): np.float32(250)}
    params = SamplingParams(logit_bias=given)  # type: ignore[arg-type]
    assert params.logit_bias == {5: 1.0, 7: -100.0, 9: 100.0}
    assert SamplingParams(logit_bias={}).logit_bias is None
    assert SamplingParams.from_optional(logit_bias={"3": 1}).logit_bias == {3: 1.0}
    params.verify()
    assert params.logit_bias == {5: 1.0, 7: -100.0, 9: 100.0}


def test_lists_of_tokens_and_words_hold_each_once_and_are_copied() -> None:
    params = SamplingParams(
        allowed_token_ids=(3, 3, 2**63), bad_words=["a", "b", "a"], logit_bias={1: 2.0}
    )  # type: ignore[arg-type]
    assert params.allowed_token_ids == [3, 2**63]
    assert params.bad_words == ["a", "b"]
    copied = params.clone()
    for name in ("allowed_token_ids", "bad_words", "logit_bias"):
        assert getattr(copied, name) == getattr(params, name)
        assert getattr(copied, name) is not getattr(params, name)


class Spelling:
    """A tokenizer whose tokens are written down; all other texts have none."""

    def __init__(self, **tokens: list[int]) -> None:
        self._tokens = {text.replace("_", " "): ids for text, ids in tokens.items()}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return self._tokens.get(text, [])


@pytest.mark.parametrize(
    ("tokens", "wanted"),
    [
        ({"no": [1], "_no": [2]}, [[1], [2]]),
        ({"no": [1, 5], "_no": [2, 5]}, [[1, 5], [2, 5]]),
        ({"no": [1], "_no": [3, 1]}, [[1]]),
        ({"no": [1], "_no": [1]}, [[1]]),
        ({"no": [1]}, [[1]]),
    ],
)
def test_a_bad_word_is_meant_with_a_space_before_it_too(
    tokens: dict[str, list[int]], wanted: list[list[int]]
) -> None:
    params = SamplingParams(bad_words=[" no"])
    params.update_from_tokenizer(Spelling(**tokens))
    assert params.bad_words_token_ids == wanted


def test_bad_words_have_tokens_and_are_not_too_many() -> None:
    with pytest.raises(RequestError, match="bad_words entries must tokenize to at least one"):
        SamplingParams(bad_words=["no"]).update_from_tokenizer(Spelling())
    with pytest.raises(RequestError, match="bad_words entries must tokenize to at least one"):
        SamplingParams(bad_words=[" "]).update_from_tokenizer(Spelling(_=[1]))
    words = {f"w{number}": [number] for number in range(129)}
    SamplingParams(bad_words=[*words][:128]).update_from_tokenizer(Spelling(**words))
    with pytest.raises(RequestError, match=r"after tokenization: 129. The max number is 128\."):
        SamplingParams(bad_words=[*words]).update_from_tokenizer(Spelling(**words))


@pytest.mark.parametrize(
    "given",
    [
        {"presence_penalty": -2, "frequency_penalty": 2},
        {"repetition_penalty": 1e-60},
        {"repetition_penalty": 1e300},
        {"repetition_penalty": 2**63},
    ],
)
def test_the_ends_of_the_penalties_are_taken(given: dict[str, float]) -> None:
    params = SamplingParams(**given)  # type: ignore[arg-type]
    for name, value in given.items():
        assert type(getattr(params, name)) is float
        assert getattr(params, name) == value


@pytest.mark.parametrize(
    "given",
    [
        {"a": [1, {"b": None}], "c": 2**64 - 1, "d": -(2**63), "e": 0.5},
        {1: 2},
        {"a": object(), "b": [2**64], "c": "\ud800", "d": lambda: None},
    ],
)
def test_other_arguments_are_kept(given: dict[Any, Any]) -> None:
    params = SamplingParams(extra_args=given)
    params.verify()
    assert params.clone().extra_args is given
    assert SamplingParams(extra_args={}).extra_args is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": [2**64]}, "name integers must be between"),
        ({1: 2}, r"name must contain only JSON values here, got \{1: 2\}."),
        ({"a": object()}, "name must contain only JSON values here, got <object"),
        ({"a": "\ud800"}, "name must contain only JSON values here"),
        ({"a": {"b": ({1},)}}, "name must contain only JSON values here"),
        ([1], "name must be a dict, got"),
    ],
)
def test_json_values_are_checked_where_they_are_sent(given: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        checked_json(given, "name", " here")


def test_a_value_that_holds_itself_is_not_json() -> None:
    given: dict[str, Any] = {}
    given["self"] = given
    with pytest.raises(RequestError, match="name must contain at most"):
        checked_json(given, "name")


@pytest.mark.parametrize("value", ["3", 1.0, True, 2**63])
def test_a_repetition_detection_of_a_wrong_type_is_named(value: object) -> None:
    with pytest.raises(RequestError, match=r"repetition_detection.min_count must"):
        RepetitionDetectionParams(max_pattern_size=1, min_count=value)  # type: ignore[arg-type]


def test_a_repetition_detection_may_be_a_dict() -> None:
    given = {"max_pattern_size": 4, "min_count": 2}
    params = SamplingParams(repetition_detection=given)  # type: ignore[arg-type]
    assert params.repetition_detection == RepetitionDetectionParams(4, 0, 2)
    packed = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(packed, type=SamplingParams) == params


def test_the_largest_n_is_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_MAX_N_SEQUENCES", "2")
    assert SamplingParams(n=2).n == 2
    with pytest.raises(RequestError, match="n must be at most 2, got 3"):
        SamplingParams(n=3)
    monkeypatch.setenv("VLLM_MAX_N_SEQUENCES", "many")
    assert SamplingParams().n == 1
    with pytest.raises(ConfigError, match="VLLM_MAX_N_SEQUENCES"):
        SamplingParams(n=2)


class OneTokenWords:
    """Each spelling of a word is a token of its own."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return [self.seen.setdefault(text, len(self.seen))]


def test_the_number_of_bad_words_is_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(bad_words=["a", "b"])
    params.update_from_tokenizer(OneTokenWords())
    assert params.bad_words_token_ids == [[0], [1], [2], [3]]
    monkeypatch.setenv("VLLM_MAX_NUM_BAD_WORDS", "2")
    words = OneTokenWords()
    with pytest.raises(RequestError, match=r"Too many bad words after.*The max number is 2\."):
        params.update_from_tokenizer(words)
    assert list(words.seen) == ["a", " a", "b"]
    monkeypatch.setenv("VLLM_MAX_NUM_BAD_WORDS", "0")
    with pytest.raises(ConfigError, match="VLLM_MAX_NUM_BAD_WORDS must be a whole number"):
        params.update_from_tokenizer(words)


def test_all_stop_tokens_are_a_set() -> None:
    assert SamplingParams(stop_token_ids=[42, 7, 42]).all_stop_token_ids == {7, 42}
    assert SamplingParams().all_stop_token_ids == set()


def test_bad_words_are_a_list_of_which_each_counts_once() -> None:
    assert SamplingParams().bad_words == SamplingParams(bad_words=[]).bad_words == []
    assert SamplingParams(bad_words=["b", "a", "b"]).bad_words == ["b", "a"]


def test_it_is_shown_as_in_vllm() -> None:
    shown = repr(SamplingParams(temperature=0.5, stop="a", logit_bias={5: 1.0}))
    assert shown == (
        "SamplingParams(n=1, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0, "
        "temperature=0.5, watermarking=None, top_p=1.0, top_k=0, min_p=0.0, seed=None, "
        "stop=['a'], stop_token_ids=[], bad_words=[], thinking_token_budget=None, "
        "include_stop_str_in_output=False, ignore_eos=False, max_tokens=16, min_tokens=0, "
        "logprobs=None, prompt_logprobs=None, skip_special_tokens=True, "
        "spaces_between_special_tokens=True, structured_outputs=None, extra_args=None, "
        "logit_bias={5: 1.0})"
    )
