"""`use_beam_search`: replies, what goes with it and what does not, and that nothing is left."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asgi_client import AsgiClient

from quire.beam_search import BeamSearchParams, BeamSearchSequence
from quire.llm import LLM

from .conftest import Harness, MakeHarness

EOS = 258
TEXT = {"prompt": "A long prompt of several blocks", "max_tokens": 5, "use_beam_search": True}
CHAT = {
    "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "use_beam_search": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def engines(tiny_model: Path) -> Iterator[tuple[LLM, Any]]:
    """The same model offline and online."""
    from quire.frontend.online.async_llm import AsyncLLM
    from quire.planning.engine_args import EngineArgs

    options: dict[str, Any] = {"backend": "reference", "max_model_len": 128}
    with LLM(str(tiny_model), **options) as llm:
        args = EngineArgs(model=str(tiny_model), **options)
        online = AsyncLLM.from_engine_args(args, engine_mode="thread")
        yield llm, online
        online.shutdown()


@pytest.fixture
def real(engines: tuple[LLM, Any], make_harness: MakeHarness) -> tuple[LLM, Harness]:
    llm, online = engines
    harness = make_harness()
    harness.model.engine = online
    return llm, harness


def path_of(body: dict[str, Any]) -> str:
    return "/v1/chat/completions" if "messages" in body else "/v1/completions"


def found_by(llm: LLM, prompt: str, width: int, **params: Any) -> list[BeamSearchSequence]:
    [output] = llm.beam_search([prompt], BeamSearchParams(width, 5, **params))
    return output.sequences


def shown(llm: LLM, prompt: str, one: BeamSearchSequence) -> str:
    """The text of a reply."""
    tokenizer = llm.get_tokenizer()
    begin = len(tokenizer.encode(prompt))
    end = len(one.tokens) - (one.finish_reason == "stop")
    return tokenizer.decode(one.tokens[begin:end], skip_special_tokens=True)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_the_reply_has_what_is_found_offline(real: tuple[LLM, Harness], width: int) -> None:
    llm, harness = real
    for penalty in (0.0, 1.0):
        body = {**TEXT, "n": width, "length_penalty": penalty, "logprobs": 2, "temperature": 0}
        reply = harness.post("/v1/completions", body)
        assert reply.status_code == 200, reply.text
        prompt = str(TEXT["prompt"])
        found = found_by(llm, prompt, width, length_penalty=penalty)
        choices = reply.json()["choices"]
        assert [choice["index"] for choice in choices] == list(range(width))
        assert [choice["text"] for choice in choices] == [shown(llm, prompt, one) for one in found]
        for choice, one in zip(choices, found, strict=True):
            assert choice["finish_reason"] == one.finish_reason
            ends = one.finish_reason == "stop"
            values = choice["logprobs"]["token_logprobs"]
            if not ends:
                assert sum(values) == pytest.approx(one.cum_logprob, abs=1e-9)
            assert all(2 <= len(each) <= 3 for each in choice["logprobs"]["top_logprobs"])
        usage = reply.json()["usage"]
        assert usage["prompt_tokens"] == len(prompt)
        assert usage["completion_tokens"] == sum(
            len(one.tokens) - len(prompt) - (one.finish_reason == "stop") for one in found
        )


def test_best_of_may_say_the_same_as_n(harness: Harness) -> None:
    body = {**TEXT, "n": 3, "temperature": 0}
    found = [harness.post("/v1/completions", {**body, "best_of": n}).json() for n in (None, 3)]
    assert found[0]["choices"] == found[1]["choices"]


def test_several_prompts_each_have_their_own(real: tuple[LLM, Harness]) -> None:
    llm, harness = real
    prompts = ["one", "another, longer one", "a third"]
    reply = harness.post("/v1/completions", {**TEXT, "prompt": prompts, "n": 2})
    texts = [choice["text"] for choice in reply.json()["choices"]]
    wanted = [shown(llm, prompt, one) for prompt in prompts for one in found_by(llm, prompt, 2)]
    assert texts == wanted


def test_a_chat_whole_and_as_a_stream(real: tuple[LLM, Harness]) -> None:
    llm, harness = real
    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    wanted = [shown(llm, prompt, one) for one in found_by(llm, prompt, 3)]
    reply = harness.post("/v1/chat/completions", {**CHAT, "n": 3, "logprobs": True})
    choices = reply.json()["choices"]
    assert [choice["message"]["content"] for choice in choices] == wanted
    assert [len(choice["logprobs"]["content"]) for choice in choices] == [5] * 3
    stream = harness.post("/v1/chat/completions", {**CHAT, "n": 3, "stream": True})
    texts = [""] * 3
    lines = [line.removeprefix("data: ") for line in stream.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    for line in lines[:-1]:
        for choice in json.loads(line)["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == wanted


def test_the_end_of_a_sequence(real: tuple[LLM, Harness], monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that the search likes stands for the end: it is in no text, and in the ids only if it
    was asked for."""
    llm, harness = real
    processor = harness.model.engine.input_processor
    [first, *_] = found_by(llm, str(TEXT["prompt"]), 4)
    end = first.tokens[-3]
    monkeypatch.setattr(processor, "eos_token_id", end)
    ends = {end, *processor.model_config.eos_token_ids}
    body = {**TEXT, "n": 4, "length_penalty": 0, "return_token_ids": True}
    without, with_end, ignored = (
        harness.post("/v1/completions", {**body, **more}).json()["choices"]
        for more in ({}, {"include_stop_str_in_output": True}, {"ignore_eos": True})
    )
    assert any(choice["finish_reason"] == "stop" for choice in without)
    for one, other in zip(without, with_end, strict=True):
        assert one["text"] == other["text"]
        is_end = one["finish_reason"] == "stop"
        assert one["stop_reason"] in (ends if is_end else {None})
        assert not ends & {*one["token_ids"]}
        assert other["token_ids"] == one["token_ids"] + [one["stop_reason"]] * is_end
    assert {choice["finish_reason"] for choice in ignored} == {"length"}


def test_a_stop_string_ends_a_sequence(real: tuple[LLM, Harness]) -> None:
    _, harness = real
    body = {**TEXT, "n": 4, "ignore_eos": True, "return_token_ids": True}
    longest = harness.post("/v1/completions", body).json()["choices"][0]["text"]
    stop = longest[len(longest) // 2 :][:2]
    without, with_stop = (
        harness.post("/v1/completions", {**body, "stop": stop, **more}).json()["choices"]
        for more in ({}, {"include_stop_str_in_output": True})
    )
    ended = [one for one in without if one["stop_reason"] == stop]
    assert ended
    assert {one["finish_reason"] for one in ended} == {"stop"}
    for one, other in zip(without, with_stop, strict=True):
        assert stop not in one["text"]
        assert other["text"] == one["text"] + stop * (one["stop_reason"] == stop)
        assert other["token_ids"] == one["token_ids"]


def test_every_sequence_has_the_form_that_is_asked_for(real: tuple[LLM, Harness]) -> None:
    llm, harness = real
    spec = {"choice": ["one", "two", "three"]}
    body = {**TEXT, "n": 3, "structured_outputs": spec}
    choices = harness.post("/v1/completions", body).json()["choices"]
    found = found_by(llm, str(TEXT["prompt"]), 3, structured_outputs=spec)
    texts = [choice["text"] for choice in choices]
    assert texts == [shown(llm, str(TEXT["prompt"]), one) for one in found]
    assert set(texts) <= {"one", "two", "three"}
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 1}
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    chat = {**CHAT, "n": 2, "max_tokens": 60, "response_format": wanted}
    choices = harness.post("/v1/chat/completions", chat).json()["choices"]
    ended = [c["message"]["content"] for c in choices if c["finish_reason"] == "stop"]
    assert all(json.loads(text) in ([True], [False]) for text in ended)
    assert all(re.fullmatch(r"\[[\strufalse]*\]?", c["message"]["content"]) for c in choices)


@pytest.mark.parametrize(("change", "param"), [
    ({"stop": [""]}, "stop"), ({"stop_token_ids": [5]}, "stop_token_ids"),
    ({"min_tokens": 1}, "min_tokens"), ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"allowed_token_ids": []}, "allowed_token_ids"), ({"bad_words": ["x"]}, "bad_words"),
    ({"frequency_penalty": 0.5}, "frequency_penalty"),
    ({"presence_penalty": 1}, "presence_penalty"),
    ({"repetition_penalty": 1.1}, "repetition_penalty"),
    ({"prompt_logprobs": 0}, "prompt_logprobs"),
    ({"logprob_token_ids": [5], "logprobs": 1}, "logprob_token_ids"),
    ({"repetition_detection": {"max_pattern_size": 2, "min_count": 2}}, "repetition_detection"),
    ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex"),
    ({"allowed_token_ids": [*range(129)]}, "allowed_token_ids"),
    ({"allowed_token_ids": [10**6]}, "allowed_token_ids"),
    ({"allowed_token_ids": [5], "structured_outputs": {"regex": "a"}}, "allowed_token_ids"),
    ({"guided_regex": "(a"}, "guided_regex"), ({"vllm_xargs": {"a": 1}}, "vllm_xargs"),
    ({"response_format": {"type": "wrong"}}, "response_format"),
    ({"early_stopping": True}, "early_stopping"), ({"best_of": 2}, "best_of"),
    ({"stream": True}, "stream"), ({"echo": True, "logprobs": 1}, "echo"),
    ({"thinking_token_budget": 5}, "thinking_token_budget"),
    *(({"n": n}, "n") for n in (-1, 0, 11, 128, 129, 2**63, 2**64, 1.5, "x", [2])),
    *(({"max_tokens": n}, "max_tokens") for n in (-1, 0, 513, 2**63, 1.5, "x")),
    *(({"length_penalty": n}, "length_penalty") for n in (-17, 16.5, 10**400, "x", [1])),
    *(({"temperature": n}, "temperature") for n in (-1, 2.1, 10**400, "x")),
    *(({"use_beam_search": n}, "use_beam_search") for n in (2, 2**63, "x", [True])),
    ({"use_beam_search": False, "length_penalty": 2}, "length_penalty"),
    ({"ignore_eos": "x"}, "ignore_eos"), ({"top_p": 2}, "top_p"), ({"top_k": -5}, "top_k"),
])  # fmt: skip
def test_what_does_not_go_with_it_is_refused_by_name(
    harness: Harness, change: dict[str, Any], param: str
) -> None:
    reply = harness.post("/v1/completions", {**TEXT, **change})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param), error


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "9223372036854775808"]
)
@pytest.mark.parametrize("name", ["n", "length_penalty", "max_tokens", "temperature"])
def test_numbers_that_are_none(harness: Harness, name: str, value: str) -> None:
    given = {**TEXT, name: "HERE"}
    content = json.dumps(given).replace('"HERE"', value)
    headers = {"content-type": "application/json"}
    reply = harness.request("POST", "/v1/completions", content=content, headers=headers)
    assert reply.status_code == 400
    assert "error" in reply.json()


@pytest.mark.parametrize(("change", "ignored"), [
    ({"top_p": 0.5, "seed": 1}, "top_p, seed"), ({"top_k": 3, "min_p": 0.1}, "top_k, min_p"),
    ({"watermarking": False}, None),
    ({"top_p": 1, "top_k": -1, "stop": [], "min_tokens": 0, "n": None, "stop_token_ids": [],
      "length_penalty": None, "best_of": 1, "echo": True, "temperature": 1.5}, None),
])  # fmt: skip
def test_what_changes_nothing_is_told(
    harness: Harness, change: dict[str, Any], ignored: str | None
) -> None:
    reply = harness.post("/v1/completions", {**TEXT, **change})
    assert reply.status_code == 200, reply.text
    assert reply.headers.get("x-quire-ignored-fields") == ignored


def test_bounds_name_the_product(make_harness: MakeHarness) -> None:
    harness = make_harness(max_prompts=6, max_reply_values=1 << 20)
    reply = harness.post("/v1/completions", {**TEXT, "prompt": ["a", "b"], "n": 4})
    assert reply.status_code == 400
    assert "2 prompts x n 4 = 8 are more than this server allows" in reply.text
    reply = make_harness().post("/v1/completions", {**TEXT, "n": 11})
    message = reply.json()["error"]["message"]
    assert message.startswith("n 11 needs the log-probabilities of 2 x 11 = 22 tokens at each ste")
    assert "at most 10" in message
    small = make_harness(max_reply_values=50)
    reply = small.post("/v1/completions", {**TEXT, "n": 4, "logprobs": 3})
    assert reply.status_code == 400
    assert "n 4 x 5 tokens with log-probabilities x 4 = 80 values" in reply.text
    assert small.post("/v1/completions", {**TEXT, "n": 4}).status_code == 200


def test_admission_is_asked_once_for_all_beams(make_harness: MakeHarness) -> None:
    harness = make_harness(scheduler={"max_num_seqs": 2, "max_num_queued_reqs": 2})
    reply = harness.post("/v1/completions", {**TEXT, "n": 5})
    assert reply.status_code == 503
    assert int(reply.headers["retry-after"]) >= 1
    assert harness.context.num_generating == 0
    assert harness.post("/v1/completions", {**TEXT, "n": 4}).status_code == 200


def test_a_deadline_ends_a_search(harness: Harness) -> None:
    body = {**TEXT, "max_tokens": 300, "n": 4, "ignore_eos": True}
    reply = harness.post("/v1/completions", body, headers={"X-Request-Timeout": "0.05"})
    assert reply.status_code == 503
    assert "deadline of 0.05 s" in reply.json()["error"]["message"]
    nothing_is_left(harness)


def nothing_is_left(harness: Harness) -> None:
    assert harness.context.num_generating == 0
    assert harness.model.engine.get_num_unfinished_requests() == 0


async def test_a_client_that_leaves_takes_its_search_along(harness: Harness) -> None:
    async with harness.client():
        client = AsgiClient(harness.app)
        body = {**TEXT, "max_tokens": 400, "n": 4}
        task = asyncio.get_running_loop().create_task(client.post("/v1/completions", body))
        while not harness.model.engine.get_num_unfinished_requests() > 1:
            await asyncio.sleep(0.001)
        client.is_gone.set()
        await task
        nothing_is_left(harness)
        await asyncio.sleep(0.05)
        nothing_is_left(harness)


async def test_an_abort_gives_what_there_is(harness: Harness) -> None:
    async with harness.client() as client:
        body = {**TEXT, "max_tokens": 400, "n": 4, "ignore_eos": True}
        task = asyncio.get_running_loop().create_task(client.post("/v1/completions", json=body))
        engine = harness.model.engine
        while not engine.get_num_unfinished_requests() > 1:
            await asyncio.sleep(0.001)
        await engine.abort_all()
        reply = await task
        assert reply.status_code == 200
        choices = reply.json()["choices"]
        assert {choice["finish_reason"] for choice in choices} == {"abort"}
        nothing_is_left(harness)


def test_an_engine_that_fails_is_an_error(harness: Harness) -> None:
    from fake_core import RAISE_IN_STEP, REFUSE

    reply = harness.post("/v1/completions", {**TEXT, "prompt": [REFUSE], "n": 2})
    assert reply.status_code == 500
    assert reply.json()["error"]["message"] == "this prompt is refused"
    reply = harness.post("/v1/completions", {**TEXT, "prompt": [RAISE_IN_STEP], "n": 2})
    assert reply.status_code in (500, 503)
    assert harness.context.num_generating == 0


@pytest.mark.parametrize("body", [TEXT, CHAT])
def test_it_cannot_be_rendered(harness: Harness, body: dict[str, Any]) -> None:
    reply = harness.post(f"{path_of(body)}/render", body)
    assert reply.status_code == 400
    assert "Beam search is not supported by the render endpoint" in reply.text
