"""What of prompt and reply fits into the context of 512 tokens, and vLLM's words for what does not.

The fake core counts up, so that a reply of any length is known.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

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


def test_a_chat_takes_what_is_left(harness: Harness) -> None:
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
    assert message.startswith("This model's maximum context length is 512 tokens. However, your ")
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
    model = dataclasses.replace(harness.context.config.model, max_output_tokens=3)
    config = dataclasses.replace(harness.context.config, model=model)
    monkeypatch.setattr(harness.context.engine, "config", config)
    for path, body in ((TEXT, {"prompt": "A"}), (CHAT, {"messages": MESSAGES})):
        reply = harness.post(path, {**body, "max_tokens": asked}).json()
        assert reply["usage"]["completion_tokens"] == count
