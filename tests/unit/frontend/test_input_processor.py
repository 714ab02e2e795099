"""InputProcessor: every way a request can be wrong, and what a right one becomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from quire.config.records import EngineConfig
from quire.errors import RequestError
from quire.frontend.arguments import RequestOptions
from quire.frontend.inputs.input_processor import InputProcessor
from quire.params import SamplingParams
from quire.protocol import EngineCoreRequest
from quire.tokenizer import Tokenizer

MakeConfig = Callable[..., EngineConfig]


@pytest.fixture
def processor(make_config: MakeConfig, tokenizer: Tokenizer) -> InputProcessor:
    return InputProcessor(make_config(), tokenizer)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "The decoder prompt cannot be empty"),
        ([], "The decoder prompt cannot be empty"),
        ({"prompt_token_ids": []}, "The decoder prompt cannot be empty"),
        ([1] * 65, "maximum context length is 64 tokens. However, your prompt contains 65 input"),
        (
            [1] * 64,
            "at least 1) is longer than the maximum model length of 64. Make sure that",
        ),
        ("x" * 100, "contains 100 input tokens, which exceeds"),
        ([1, 288], "Token id 288 is out of vocabulary: ids must be from 0 to 287"),
        ([1, -1, 500], "Token id -1 is out of vocabulary"),
        ([1, 2.0], "token ids must be integers, got 2.0"),
        ([1, True], "token ids must be integers, got True"),
        ([1, "a"], "token ids must be integers, got 'a'"),
        (5, "prompt_token_ids, got 5 (int)"),
        (b"abc", "got b'abc' (bytes)"),
        (None, "got None (NoneType)"),
        ({}, "a prompt must contain prompt or prompt_token_ids"),
        ({"prompt": 5}, "prompt must be a string, got 5 (int)"),
        (
            {"prompt": "a", "multi_modal_data": {"image": 1}},
            "this model takes no images",
        ),
        ({"prompt": "a", "cache_salt": ""}, "'cache_salt' must be a non-empty string"),
        ({"prompt": "a", "cache_salt": 5}, "'cache_salt' must be a non-empty string"),
        ("a\ud800b", "the prompt must be valid Unicode"),
    ],
)
def test_a_bad_prompt_is_refused(processor: InputProcessor, prompt: Any, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        processor.process("r", prompt, SamplingParams())
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            SamplingParams(logprobs=21),
            "Requested sample logprobs of 21, which is greater than max allowed: 20",
        ),
        (SamplingParams(logprobs=-1), "logprobs of 288, which is greater than max allowed: 20"),
        (
            SamplingParams(stop_token_ids=[5, 288]),
            "token_id(s) [288] in stop_token_ids contain out-of-vocab token ids. "
            "Vocabulary size: 288",
        ),
        (
            SamplingParams(logit_bias={5: 1, -1: 1, 2**70: 1}),
            "token_id(s) [-1, 1180591620717411303424] in logit_bias contain out-of-vocab token ids",
        ),
        (
            SamplingParams(logprob_token_ids=[288]),
            "token_id(s) [288] in logprob_token_ids contain out-of-vocab token ids",
        ),
        (
            SamplingParams(allowed_token_ids=[5, 288]),
            "allowed_token_ids contains out-of-vocab token id! [288] are not below",
        ),
        (
            SamplingParams(allowed_token_ids=[9], stop_token_ids=[9], min_tokens=1),
            "allowed_token_ids must contain a token that min_tokens and bad_words do not forbid",
        ),
        (
            SamplingParams(stop_token_ids=[*range(288)], min_tokens=1),
            "min_tokens=1 forbids the stop_token_ids, which with bad_words are all 288 tokens",
        ),
        (SamplingParams(max_tokens=None, min_tokens=63), "or equal to max_tokens=62, got 63."),
    ],
)
def test_params_that_do_not_fit_the_model_are_refused(
    processor: InputProcessor, params: SamplingParams, message: str
) -> None:
    with pytest.raises(RequestError) as caught:
        processor.process("r", [1, 2], params)
    assert message in str(caught.value)


def test_a_field_assigned_after_construction_is_checked(processor: InputProcessor) -> None:
    params = SamplingParams()
    params.max_tokens = 0
    with pytest.raises(RequestError, match="max_tokens must be at least 1, got 0"):
        processor.process("r", [1], params)
    with pytest.raises(
        TypeError, match="params must be SamplingParams or PoolingParams, but got dict"
    ):
        processor.process("r", [1], {})  # type: ignore[arg-type]


def test_text_needs_a_tokenizer(make_config: MakeConfig) -> None:
    processor = InputProcessor(make_config(), None)
    with pytest.raises(RequestError, match="skip_tokenizer_init"):
        processor.process("r", "text", SamplingParams())
    with pytest.raises(RequestError, match="stop strings require a tokenizer"):
        processor.process("r", [1], SamplingParams(stop="x"))
    with pytest.raises(RequestError, match="bad_words strings require a tokenizer"):
        processor.process("r", [1], SamplingParams(bad_words=["x"]))
    assert processor.process("r", [1], SamplingParams()).prompt is None


def test_bad_words_become_tokens_for_every_output(
    processor: InputProcessor, tokenizer: Tokenizer
) -> None:
    params = SamplingParams(n=2, bad_words=["a", "bc"])
    for core in processor.process("r", [1], params).core_requests:
        words = core.sampling_params.bad_words_token_ids
        assert words is not None
        assert tokenizer.encode("a", add_special_tokens=False) in words
        assert tokenizer.encode("bc", add_special_tokens=False) in words
    assert params.bad_words_token_ids is None, "the user's object is left alone"
    [only] = tokenizer.encode("a", add_special_tokens=False)
    with pytest.raises(RequestError, match="that min_tokens and bad_words do not forbid"):
        processor.process("r", [1], SamplingParams(bad_words=["a"], allowed_token_ids=[only]))


def test_a_priority_goes_to_the_core_whatever_its_policy(processor: InputProcessor) -> None:
    request = processor.process("r", [1], SamplingParams(), RequestOptions(priority=3))
    assert request.core_requests[0].priority == 3
    wrong = RequestOptions(priority=1.5)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="priority must be an integer"):
        processor.process("r", [1], SamplingParams(), wrong)


def test_every_form_of_prompt(processor: InputProcessor) -> None:
    ids = processor.process("r", "abc", SamplingParams()).prompt_token_ids
    assert len(ids) == 3
    forms: list[Any] = [
        {"prompt": "abc"}, ids, tuple(ids), np.array(ids), {"prompt_token_ids": ids},
        {"prompt_token_ids": ids, "prompt": "shown"},
    ]  # fmt: skip
    for form in forms:
        assert processor.process("r", form, SamplingParams()).prompt_token_ids == ids
    assert processor.process("r", forms[-1], SamplingParams()).prompt == "shown"
    salted = processor.process("r", {"prompt": "abc", "cache_salt": "s"}, SamplingParams())
    assert salted.core_requests[0].scope.salt == "s"


def test_end_tokens_are_resolved(make_config: MakeConfig, tokenizer: Tokenizer) -> None:
    processor = InputProcessor(make_config(eos_token_ids=(256, 7)), tokenizer)
    [core] = processor.process("r", [1], SamplingParams(stop_token_ids=[9])).core_requests
    assert core.stop_token_ids == [9, 7, 256]
    assert core.eos_token_ids == [256]
    assert core.banned_token_ids == []
    [core] = processor.process("r", [1], SamplingParams(ignore_eos=True)).core_requests
    assert core.stop_token_ids == []
    assert core.banned_token_ids == []


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_until_min_tokens_every_end_token_is_forbidden(
    make_config: MakeConfig, tokenizer: Tokenizer, ignore_eos: bool
) -> None:
    processor = InputProcessor(make_config(eos_token_ids=(256, 7)), tokenizer)
    params = SamplingParams(n=2, stop_token_ids=[9], min_tokens=3, ignore_eos=ignore_eos)
    for core in processor.process("r", [1], params).core_requests:
        assert core.banned_token_ids[0] == 9
        assert sorted(core.banned_token_ids) == [7, 9, 256]
        assert sorted(core.stop_token_ids) == ([9] if ignore_eos else [7, 9, 256])


def test_open_values_are_resolved(processor: InputProcessor) -> None:
    params = SamplingParams(max_tokens=None)
    [core] = processor.process("r", [1, 2, 3], params).core_requests
    assert core.sampling_params.max_tokens == 61
    assert core.sampling_params.seed is not None
    assert params.max_tokens is None, "the user's object is left alone"
    assert params.seed is None


def test_n_outputs_are_n_requests_with_seeds_of_their_own(processor: InputProcessor) -> None:
    drawn = processor.process("r", [1], SamplingParams(n=3)).core_requests
    assert len({core.sampling_params.seed for core in drawn}) == 3
    assert len({core.request_id for core in drawn}) == 3
    seeded = processor.process("r", [1], SamplingParams(n=3, seed=2**64 - 1)).core_requests
    assert [core.sampling_params.seed for core in seeded] == [2**64 - 1, 0, 1]
    assert all(core.sampling_params.n == 1 for core in seeded)


def test_the_keys_of_a_prompt_are_computed_once_where_it_is_read(processor: InputProcessor) -> None:
    asked = []

    def block_keys(request: EngineCoreRequest) -> list[bytes]:
        asked.append((request.prompt_token_ids, request.scope.salt))
        return [b"key"]

    processor.block_keys = block_keys
    prompt: Any = {"prompt_token_ids": [1, 2], "cache_salt": "mine"}
    made = processor.process("r", prompt, SamplingParams(n=3)).core_requests
    assert [one.block_keys for one in made] == [[b"key"]] * 3
    assert asked == [([1, 2], "mine")]


def test_drawn_seeds_follow_the_engines(make_config: MakeConfig) -> None:
    def seeds(engine_seed: int) -> list[int | None]:
        processor = InputProcessor(make_config(seed=engine_seed), None)
        inputs = [processor.process("r", [1], SamplingParams()) for _ in range(3)]
        return [one.core_requests[0].sampling_params.seed for one in inputs]

    assert seeds(1) == seeds(1)
    assert seeds(1) != seeds(2)
    assert len(set(seeds(1))) == 3


def test_core_ids_are_unique_for_equal_user_ids(processor: InputProcessor) -> None:
    ids = {
        processor.process("same", [1], SamplingParams()).core_requests[0].request_id
        for _ in range(10)
    }
    assert len(ids) == 10
