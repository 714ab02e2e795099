"""The forms in which a message's content can come, and what of a chat its reply repeats."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Harness
from .test_completions import events_of

CHAT = "/v1/chat/completions"


def rendered(harness: Harness, content: Any, **fields: Any) -> str:
    messages = [{"role": "assistant", "content": content, **fields}]
    reply = harness.post(f"{CHAT}/render", {"messages": messages, "max_tokens": 1})
    assert reply.status_code == 200, reply.text
    prompt: str = reply.json()["prompt"]
    return prompt.partition("\n")[2].partition("<|im_end|>")[0]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a", "a"),
        ([], ""),
        (["a", "b"], "a\nb"),
        ([{"type": "text", "text": "a"}, "b", {"type": "input_text", "text": "c"}], "a\nb\nc"),
        ([{"type": "output_text", "text": "a"}], "a"),
        ([{"type": "refusal", "refusal": "no"}], "no"),
        ([{"type": "thinking", "thinking": "hm", "closed": True}, "a"], "hm\na"),
    ],
)
def test_content_in_all_its_forms(harness: Harness, content: Any, text: str) -> None:
    assert rendered(harness, content) == text


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "video_url", "video_url": {"url": "x"}},
        {"type": "nonsense", "text": "a"},
        {"type": "refusal", "text": "a"},
        {"type": "text"},
    ],
)
def test_parts_that_a_text_model_cannot_take_are_named(harness: Harness, part: Any) -> None:
    body = {"messages": [{"role": "user", "content": ["a", part]}], "max_tokens": 1}
    reply = harness.post(CHAT, body)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "messages")
    is_seen = part["type"] in ("image_url", "video_url", "input_audio")
    assert ("takes no images" if is_seen else part["type"]) in error["message"]


@pytest.mark.parametrize("content", [5, {"type": "text", "text": "a"}, [5], [None], [["a"]]])
def test_content_of_another_kind_is_refused(harness: Harness, content: Any) -> None:
    reply = harness.post(CHAT, {"messages": [{"role": "user", "content": content}]})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith("messages[0].content")


def test_the_size_of_all_parts_counts(harness: Harness) -> None:
    part = {"type": "refusal", "refusal": "a" * 600}
    for content in ([part], ["a" * 600]):
        reply = harness.post(CHAT, {"messages": [{"role": "user", "content": content}]})
        assert "maximum context length is 512 tokens" in reply.json()["error"]["message"]


def test_a_stream_begins_with_the_role_and_then_the_echo(harness: Harness) -> None:
    body = {
        "messages": [{"role": "assistant", "content": ["So", {"type": "text", "text": "it"}]}],
        "add_generation_prompt": False, "continue_final_message": True, "echo": True,
        "max_tokens": 1, "n": 2, "stream": True,
    }  # fmt: skip
    choices = [event["choices"][0] for event in events_of(harness.post(CHAT, body))]
    assert [choice["delta"] for choice in choices[:4]] == [
        {"role": "assistant", "content": ""}, {"role": "assistant", "content": ""},
        {"content": "So\nit"}, {"content": "So\nit"},
    ]  # fmt: skip
    assert [choice["index"] for choice in choices[:4]] == [0, 1, 0, 1]
    assert len(choices) == 6


def test_a_message_has_no_tool_calls_where_none_were_made(harness: Harness) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    message = harness.post(CHAT, body).json()["choices"][0]["message"]
    assert "tool_calls" not in message
    body["messages"] += [message, {"role": "user", "content": "b"}]
    reply = harness.post(CHAT, body)  # as clients send it back
    assert reply.status_code == 200
    assert "x-quire-ignored-fields" not in reply.headers


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({"reasoning_effort": "none"}, "False"),
        ({"reasoning_effort": "low"}, "True"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}, "False"),
        ({}, ""),
    ],
)
def test_reasoning_effort_switches_thinking(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], thinking: str
) -> None:
    from quire.chat.templates import ChatTemplates

    monkeypatch.setattr(
        harness.model.chat, "templates", ChatTemplates({"default": "<{{ enable_thinking }}>"}, {})
    )
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, **fields}
    assert harness.post(f"{CHAT}/render", body).json()["prompt"] == f"<{thinking}>"
