"""Marks of reasoning that are special tokens: the reader gets them, the caller does not."""

from __future__ import annotations

from typing import Any

import pytest
from fake_core import FakeCore
from scripted_core import END, token_ids_of

from quire.parsers.format import ReasoningTags, ReplyFormat
from quire.protocol import EngineCoreRequest

from .conftest import MakeHarness
from .test_completions import events_of

BEGIN_ID = 257
REPLY = [BEGIN_ID, *token_ids_of("ab</think>c"), END]
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 40}


class Core(FakeCore):
    def _token(self, request: EngineCoreRequest, count: int) -> int:  # noqa: ARG002
        return REPLY[min(count, len(REPLY)) - 1]


@pytest.mark.parametrize("skips", [True, False])
def test_reply(make_harness: MakeHarness, skips: bool) -> None:
    harness = make_harness(core=Core)
    harness.model.found_format = ReplyFormat(ReasoningTags("<|im_start|>", "</think>"))
    body = {**BODY, "skip_special_tokens": skips}
    reply = harness.post("/v1/chat/completions", body).json()
    message = reply["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("ab", "c")
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *events, last = events_of(harness.post("/v1/chat/completions", {**body, **options}))
    deltas = [event["choices"][0]["delta"] for event in events]
    for name, text in (("reasoning", "ab"), ("content", "c")):
        assert "".join(delta.get(name) or "" for delta in deltas) == text
    assert last["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2


def test_other_replies_have_no_special_tokens(make_harness: MakeHarness) -> None:
    harness = make_harness(core=Core)
    reply = harness.post("/v1/chat/completions", BODY).json()
    assert reply["choices"][0]["message"]["content"] == "ab</think>c"
    reply = harness.post("/v1/completions", {"prompt": "x", "max_tokens": 40}).json()
    assert reply["choices"][0]["text"] == "ab</think>c"


def test_a_model_whose_replies_show_them(
    make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = make_harness(core=Core)
    monkeypatch.setitem(
        harness.model.config.model.default_sampling_params,  # type: ignore[arg-type]
        "skip_special_tokens", False,
    )  # fmt: skip
    whole = "<|im_start|>ab</think>c"
    for asked, text in (({}, whole), ({"skip_special_tokens": True}, whole[12:])):
        reply = harness.post("/v1/chat/completions", {**BODY, **asked}).json()
        assert reply["choices"][0]["message"]["content"].startswith(text)
        options = {"prompt": "x", "max_tokens": 40, **asked}
        reply = harness.post("/v1/completions", options).json()
        assert reply["choices"][0]["text"].startswith(text)
