"""An invalid request in a batch is named by its position; the others are not run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from tiny_checkpoint import write_tiny_checkpoint

from quire.beam_search import BeamSearchParams
from quire.errors import PromptError, RequestError
from quire.llm import LLM
from quire.params import SamplingParams

LIMIT = 64
PARAMS = SamplingParams(max_tokens=1, ignore_eos=True)
TURN = [{"role": "user", "content": "a"}]
PLACES = (0, 13, 19)
BAD: dict[str, Any] = {
    "maximum context length is 64": "x" * 200,
    "maximum model length of 64": [1] * LIMIT,
    "a prompt must be a text, .* got None": None,
    "a prompt must be a text, .* got nan": math.nan,
    "a prompt must be a text, .* got 3": 3,
    "a prompt must be a text, .* got b'x'": b"x",
    "prompt cannot be empty": [],
    "token ids must be integers, got 'a'": [1, "a"],
    "Token id 1000000 is out of vocabulary": [1000000],
    "prompt must be a string, got 5": {"prompt": 5},
    "a prompt must contain prompt or": {},
    "a prompt must not contain prmpt": {"prmpt": "a"},
    "Parameter 'cache_salt' must be": {"prompt": "a", "cache_salt": ""},
    "must be valid Unicode": "\ud800",
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    model_dir = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
    with LLM(str(model_dir), backend="reference", max_model_len=LIMIT) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_is_left(llm: LLM) -> Iterator[None]:
    yield
    assert not llm.llm_engine.has_unfinished_requests()


def batch(bad: Any, index: int, good: Any = "a") -> list[Any]:
    return [bad if i == index else good for i in range(20)]


@pytest.mark.parametrize("message", BAD)
def test_a_bad_prompt_is_named(llm: LLM, message: str) -> None:
    for index in PLACES:
        prompts = batch(BAD[message], index)
        expected = rf"^prompts\[{index}\]: .*{message}"
        with pytest.raises(PromptError, match=expected):
            llm.generate(prompts, PARAMS, use_tqdm=False)
        with pytest.raises(PromptError, match=expected):
            llm.enqueue(prompts, [PARAMS] * 20, use_tqdm=False)
        with pytest.raises(PromptError, match=expected):
            llm.beam_search(prompts, BeamSearchParams(beam_width=2, max_tokens=1))


def test_the_only_prompt_has_no_position(llm: LLM) -> None:
    with pytest.raises(PromptError, match=r"^This model's maximum context length"):
        llm.generate(["x" * 200], PARAMS, use_tqdm=False)


def test_parameters_of_all_have_no_position(llm: LLM) -> None:
    wrong = SamplingParams(logprobs=1000)
    with pytest.raises(RequestError, match=r"^Requested sample logprobs of 1000"):
        llm.generate(batch("a", 0), wrong, use_tqdm=False)
    for index in PLACES:
        with pytest.raises(RequestError, match=rf"^sampling_params\[{index}\]: Requested sample"):
            llm.generate(batch("a", 0), batch(wrong, index, PARAMS), use_tqdm=False)


def test_parameters_that_do_not_fit_one_prompt(llm: LLM) -> None:
    params = SamplingParams(max_tokens=None, min_tokens=10, ignore_eos=True)
    with pytest.raises(RequestError, match=r"^prompts\[13\]: min_tokens must be"):
        llm.generate(batch([1] * 60, 13), params, use_tqdm=False)


@pytest.mark.parametrize("index", PLACES)
def test_a_bad_conversation_is_named(llm: LLM, index: int) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    for bad, message in (
        ([{"role": "user", "content": "x" * 200}], "This model's maximum context length"),
        ([{"content": "a"}], r"messages\[0\] has no role"),
        ([], "there must be at least one message"),
    ):
        messages = batch(bad, index, TURN)
        for call in (llm.chat, llm.enqueue_chat):
            with pytest.raises(RequestError, match=rf"^messages\[{index}\]: {message}"):
                call(messages, PARAMS, use_tqdm=False, chat_template=template)
        with pytest.raises(RequestError, match=rf"^messages\[{index}\]: {message}"):
            llm.preprocess_chat(messages, chat_template=template)


def test_bad_prompts_can_be_skipped(llm: LLM) -> None:
    """As the documentation of `generate` says."""
    prompts, kept = ["a", None, "b", "x" * 200, "c"], []
    for prompt in prompts:
        try:
            llm.enqueue(prompt, PARAMS, use_tqdm=False)  # type: ignore[arg-type]
        except PromptError:
            continue
        kept.append(prompt)
    assert [output.prompt for output in llm.wait_for_completion(use_tqdm=False)] == kept
    assert kept == ["a", "b", "c"]
