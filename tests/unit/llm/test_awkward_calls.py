"""Sampling parameters and arguments of `LLM`'s methods that nobody expects: outputs, or an error
of ours that names what is wrong; nothing is left behind, and the next call works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from awkward import EVERY, awkward, check_message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_checkpoint import write_tiny_checkpoint

from quire.errors import QuireError
from quire.llm import LLM
from quire.params import SamplingParams

FIELDS = [name for name in SamplingParams.__struct_fields__ if not name.startswith("_")]
SHORT: dict[str, Any] = {"max_tokens": 2, "ignore_eos": True}
CHAT = [{"role": "user", "content": "a"}]
PROMPT = ("rompt", "oken id", "cache_salt")
MESSAGE = ("message", "role", "content", "rompt", "emplate")
LIMIT = 64
"""Tokens of a context: no value makes a request long."""


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    model_dir = write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))
    with LLM(str(model_dir), backend="reference", max_model_len=LIMIT, max_num_seqs=16) as made:
        yield made


def check(llm: LLM, call: Callable[[], Any], *names: str) -> None:
    """Runs a call; afterwards the engine is as it was."""
    try:
        call()
    except (QuireError, TypeError) as error:
        check_message(error, *names)
    core = llm.llm_engine.engine_core
    assert not core.has_unfinished_requests()
    assert not llm.llm_engine.has_unfinished_requests()
    core.scheduler.check_integrity()


def generate(llm: LLM, prompts: Any, params: Any = None, **options: Any) -> None:
    params = SamplingParams(**SHORT) if params is None else params
    llm.generate(prompts, params, use_tqdm=False, **options)


def with_field(llm: LLM, name: str, value: Any) -> None:
    """A field given to the constructor, and one assigned afterwards."""
    names = (name, name.replace("_", " "))
    check(llm, lambda: generate(llm, "a", SamplingParams(**{**SHORT, name: value})), *names)

    def assign() -> None:
        params = SamplingParams(**SHORT)
        setattr(params, name, value)
        generate(llm, "a", params)

    check(llm, assign, *names)


@pytest.mark.sweep(12)
@pytest.mark.parametrize("name", FIELDS)
def test_every_sampling_parameter_with_every_awkward_value(llm: LLM, name: str) -> None:
    for value in EVERY:
        with_field(llm, name, value)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(FIELDS), value=awkward())
def test_any_sampling_parameter_with_any_value(llm: LLM, name: str, value: Any) -> None:
    with_field(llm, name, value)


def test_prompts_in_every_form(llm: LLM) -> None:
    for value in EVERY:
        check(llm, lambda value=value: generate(llm, value), *PROMPT)  # type: ignore[misc]
        check(llm, lambda value=value: generate(llm, [value]), *PROMPT)  # type: ignore[misc]
        for key in ("prompt", "prompt_token_ids", "cache_salt", "more"):
            prompt = {"prompt": "a", key: value}
            check(llm, lambda prompt=prompt: generate(llm, prompt), *PROMPT, key)  # type: ignore[misc]


@pytest.mark.parametrize(
    "name", ["priority", "tokenization_kwargs", "lora_request", "mm_processor_kwargs"]
)
def test_arguments_of_generate(llm: LLM, name: str) -> None:
    for value in EVERY:
        options = {name: value}
        check(llm, lambda options=options: generate(llm, "a", **options), name, "riority")  # type: ignore[misc]


def test_sampling_params_and_progress_bars(llm: LLM) -> None:
    for value in EVERY:
        check(llm, lambda value=value: llm.generate("a", value, use_tqdm=False), "params")  # type: ignore[misc]
        check(llm, lambda value=value: llm.enqueue("a", [value]), "params")  # type: ignore[misc]
        llm.wait_for_completion(use_tqdm=False)
        if not callable(value):
            params = SamplingParams(**SHORT)
            check(
                llm,
                lambda value=value, params=params: llm.generate("a", params, use_tqdm=value),
                "use_tqdm",
            )  # type: ignore[misc]


def test_messages_in_every_form(llm: LLM) -> None:
    params = SamplingParams(**SHORT)

    def chat(messages: Any, **options: Any) -> None:
        check(
            llm, lambda: llm.chat(messages, params, use_tqdm=False, **options), *MESSAGE, *options
        )

    for value in EVERY:
        chat(value)
        chat([value])
        for key in ("role", "content", "name", "tool_calls"):
            chat([{"role": "user", "content": "a", key: value}])
        for name in ("chat_template", "chat_template_content_format", "add_generation_prompt",
                     "continue_final_message", "tools", "chat_template_kwargs"):  # fmt: skip
            chat(CHAT, **{name: value})


@pytest.mark.parametrize(
    "name", ["request_id", "arrival_time", "trace_headers", "priority", "params"]
)
def test_an_engine_used_by_hand(llm: LLM, name: str) -> None:
    engine = llm.llm_engine

    def add(value: Any) -> None:
        given = {"request_id": "r", "prompt": "a", "params": SamplingParams(**SHORT), name: value}
        engine.add_request(**given)
        while engine.has_unfinished_requests():
            engine.step()

    for value in EVERY:
        check(llm, lambda value=value: add(value), name)  # type: ignore[misc]
        check(llm, lambda value=value: engine.abort_request(value), "request_ids")  # type: ignore[misc]
