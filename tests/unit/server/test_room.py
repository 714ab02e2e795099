"""What of prompt and reply fits into the context of 512 tokens, and vLLM's words for what does not.

The fake core counts up, so that a reply of any length is known.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from quire.frontend.inputs.tokenization import Truncation
from quire.tokenizer.tokenizer import SpecialFrame

from .conftest import Harness

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


def error_of(harness: Harness, path: str, **body: Any) -> dict[str, Any]:
    reply = harness.post(path, body)
    assert reply.status_code == 400, reply.text
    error: dict[str, Any] = reply.json()["error"]
    assert (error["type"], error["code"]) == ("BadRequestError", 400)
    return error


@pytest.mark.parametrize("max_tokens", [512, 13, 12, 11])
def test_a_reply_ends_with_the_context(harness: Harness, max_tokens: int) -> None:
    body = {"prompt": [5] * 500, "max_tokens": max_tokens, "temperature": 0}
    reply = harness.post(TEXT, body).json()
    count = min(12, max_tokens)
    assert reply["usage"]["completion_tokens"] == count
    assert reply["choices"][0]["finish_reason"] == "length"
    rendered = harness.post(f"{TEXT}/render", body).json()
    assert rendered[0]["sampling_params"]["max_tokens"] == count


def test_each_prompt_has_what_it_leaves(harness: Harness) -> None:
    body = {"prompt": [[5] * 510, [5] * 500, [5]], "max_tokens": 10}
    reply = harness.post(TEXT, {**body, "return_token_ids": True}).json()
    assert [len(choice["token_ids"]) for choice in reply["choices"]] == [2, 10, 10]


def test_a_chat_takes_what_is_left(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fake_core.FakeCore.step_s", 0.0)
    for name in ("max_tokens", "max_completion_tokens"):
        reply = harness.post(CHAT, {"messages": MESSAGES, name: 512, "stop_token_ids": []}).json()
        assert reply["usage"]["total_tokens"] == 512


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        (TEXT, {"prompt": "a"}, "max_tokens"),
        (TEXT, {"prompt": "a", "stream": True}, "max_tokens"),
        (CHAT, {"messages": MESSAGES}, "max_tokens"),
        (CHAT, {"messages": MESSAGES, "max_tokens": 5}, "max_completion_tokens"),
    ],
)
def test_more_than_the_context_is_refused(
    harness: Harness, path: str, body: dict[str, Any], name: str
) -> None:
    error = error_of(harness, path, **{**body, name: 513})
    assert error["param"] == name
    assert error["message"] == (
        f"{name}=513 cannot be greater than max_model_len=512. Please request fewer output tokens."
    )


def test_min_tokens_must_fit_too(harness: Harness) -> None:
    error = error_of(harness, TEXT, prompt=[5] * 500, max_tokens=100, min_tokens=13)
    assert error["param"] == "min_tokens"
    assert "less than or equal to max_tokens=12, got 13" in error["message"]


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([5] * 513, "contains 513 input tokens, which exceeds this limit even without any output"),
        ("a" * 600, "contains 600 input tokens, which exceeds this limit even without any output"),
        ([5] * 512, "contains 512 input tokens, which leaves no room for output tokens"),
        (["a", "a" * 512], "contains 512 input tokens, which leaves no room for output tokens"),
        ("a" * 40_000, "contains 40000 bytes (more than "),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long(harness: Harness, prompt: Any, said: str, stream: bool) -> None:
    error = error_of(harness, TEXT, prompt=prompt, max_tokens=1, stream=stream)
    message = error["message"]
    place = "prompt[1]: " if isinstance(prompt[0], str) and len(prompt) == 2 else ""
    vllms = "This model's maximum context length is 512 tokens. However, your "
    assert message.startswith(place + vllms)
    assert said in message
    assert message.endswith("Please reduce the length of the input prompt.")
    assert error["param"] == ("input_text" if "bytes" in said else "input_tokens")
    rendered = error_of(harness, f"{TEXT}/render", prompt=prompt, max_tokens=1)
    assert rendered["message"] == message


def test_a_chat_that_is_too_long(harness: Harness) -> None:
    error = error_of(harness, CHAT, messages=[{"role": "user", "content": "a" * 600}])
    assert "maximum context length is 512 tokens" in error["message"]
    assert error["param"] == "input_tokens"


def test_null_is_the_default_of_completions(harness: Harness) -> None:
    reply = harness.post(TEXT, {"prompt": "A", "max_tokens": None, "min_tokens": None}).json()
    assert reply["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(("asked", "count"), [(None, 3), (2, 2), (20, 3)])
def test_a_servers_limit_holds_for_every_reply(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, asked: int | None, count: int
) -> None:
    model = dataclasses.replace(harness.model.config.model, max_output_tokens=3)
    config = dataclasses.replace(harness.model.config, model=model)
    monkeypatch.setattr(harness.model.engine, "config", config)
    for path, body in ((TEXT, {"prompt": "A"}), (CHAT, {"messages": MESSAGES})):
        reply = harness.post(path, {**body, "max_tokens": asked}).json()
        assert reply["usage"]["completion_tokens"] == count


@pytest.mark.parametrize(
    ("side", "begin", "kept"),
    [(None, [], "89"), ("left", [], "89"), ("right", [], "01"), (None, [1, 2], "1289")],
)
def test_a_prompt_is_cut_where_the_request_says_so(side: Any, begin: list[int], kept: str) -> None:
    """The special tokens around a text stay, unless the request names a side."""
    ids, count = [*begin, *range(10)], len(kept)
    frame = SpecialFrame(begin, []) if begin else None
    assert Truncation(count, side).kept(ids, frame) == [int(each) for each in kept]
    assert Truncation(len(ids), side).kept(ids, frame) == ids
    assert Truncation(0, side).kept(ids, frame) == []
    assert len(Truncation(1, side).kept(ids, frame)) == 1


def test_cut_prompts_over_http(harness: Harness) -> None:
    def ids_of(**body: Any) -> list[list[int]]:
        request = {"max_tokens": 1, "return_token_ids": True, **body}
        reply = harness.post(CHAT if "messages" in body else TEXT, request)
        assert reply.status_code == 200, reply.text
        found = reply.json()
        prompts = [choice["prompt_token_ids"] for choice in found["choices"]]
        assert found["usage"]["prompt_tokens"] == sum(map(len, prompts))
        return prompts

    cut = {"truncate_prompt_tokens": 4}
    assert ids_of(prompt=[5, 6, 7, 8, 9], **cut) == [[6, 7, 8, 9]]
    assert ids_of(prompt=[5, 6, 7, 8, 9], truncation_side="right", **cut) == [[5, 6, 7, 8]]
    assert ids_of(prompt=[[5] * 9, [6]], **cut) == [[5] * 4, [6]]
    assert ids_of(prompt=list(range(200)) * 100, **cut) == [[196, 197, 198, 199]]
    assert ids_of(prompt=[7] * 40_000, **cut) == [[7] * 4]  # decoded in another way
    (ending,) = ids_of(prompt="x" * 600 + "ABCD", **cut)
    assert harness.post("/detokenize", {"tokens": ending}).json()["prompt"] == "ABCD"
    assert ids_of(prompt=[5] * 600, truncate_prompt_tokens=-1) == [[5] * 511]


def test_a_cut_chat(harness: Harness) -> None:
    body = {"messages": [{"role": "user", "content": "a" * 900}], "max_tokens": 1}
    whole = harness.post("/tokenize", {"messages": body["messages"]}).json()["tokens"]
    for side, kept in ((None, whole[-20:]), ("left", whole[-20:]), ("right", whole[:20])):
        cut = {"truncate_prompt_tokens": 20, "truncation_side": side}
        rendered = harness.post(f"{CHAT}/render", {**body, **cut}).json()
        assert rendered["token_ids"] == kept


def test_a_prompt_cut_to_the_context_has_no_room(harness: Harness) -> None:
    error = error_of(harness, TEXT, prompt=[5] * 600, truncate_prompt_tokens=512)
    assert "contains 512 input tokens, which leaves no room" in error["message"]
    many = {"prompt": [5] * 150_000, "truncate_prompt_tokens": 4}
    assert "max_json_values" in error_of(harness, TEXT, **many)["message"]


@pytest.mark.parametrize("index", [0, 2])
def test_one_of_several_prompts_is_named(harness: Harness, index: int) -> None:
    for bad, message in (
        ([5] * 600, "This model's maximum context length is 512 tokens"),
        ([1_000_000], "Token id 1000000 is out of vocabulary"),
        ([], "The decoder prompt cannot be empty"),
    ):
        prompts = [bad if i == index else [5] for i in range(3)]
        error = error_of(harness, TEXT, prompt=prompts)
        assert error["message"].startswith(f"prompt[{index}]: {message}")
    error = error_of(harness, TEXT, prompt=["x" * 600 if i == index else "x" for i in range(3)])
    assert error["message"].startswith(f"prompt[{index}]: This model's maximum context length")
    error = error_of(harness, TEXT, prompt=["x"] * 3, logit_bias={"1000000": 1})
    assert error["message"].startswith("token_id(s) [1000000] in logit_bias")
