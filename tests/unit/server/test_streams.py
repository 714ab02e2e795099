"""What a stream tells and when: an event for every step of a choice, text or not.

The fake core counts up from the prompt's last byte; its tokens are bytes, so that what is text
and what has to be held back is known beforehand.
"""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Harness
from .test_completions import events_of

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def body_of(path: str, **fields: Any) -> dict[str, Any]:
    """A request whose reply begins after the byte `A`; a chat's last message is gone on with."""
    if path == COMPLETIONS:
        return {"prompt": "A", **fields}
    return {
        "messages": [{"role": "assistant", "content": "A"}], "add_generation_prompt": False,
        "continue_final_message": True, **fields,
    }  # fmt: skip


def text_of(choice: Any) -> str:
    if "message" in choice:
        return choice["message"]["content"]
    return choice["text"] if "text" in choice else choice["delta"]["content"]


def counted_events(harness: Harness, path: str, **fields: Any) -> list[Any]:
    """The events with a choice, each with the usage so far; a chat's first is its role."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = body_of(path, **fields, stream=True, stream_options=options)
    *events, last = events_of(harness.post(path, body))
    assert last["choices"] == []
    num_tokens = {event["choices"][0]["index"]: 0 for event in events}
    if path == CHAT:
        n = fields.get("n", 1)
        roles, events = events[:n], events[n:]
        assert [event["choices"][0]["index"] for event in roles] == list(range(n))
        for event in roles:
            assert event["choices"][0]["delta"] == {"role": "assistant", "content": ""}
            assert event["usage"]["completion_tokens"] == 0
    for event in events:
        num_tokens[event["choices"][0]["index"]] = event["usage"]["completion_tokens"]
    assert last["usage"]["completion_tokens"] == sum(num_tokens.values())
    return events


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_tokens_whose_text_is_held_back_have_their_events(harness: Harness, path: str) -> None:
    """`CDEFGX` never comes, but from C to G it may: the five tokens are told without text."""
    events = counted_events(harness, path, max_tokens=9, stop="CDEFGX")
    text, before, num_empty = "", 0, 0
    for event in events:
        (choice,), count = event["choices"], event["usage"]["completion_tokens"]
        assert count > before, "an event that brings no token"
        text, before = text + text_of(choice), count
        assert text == ("B" if count < 7 else "BCDEFGHIJ"[:count])
        num_empty += text_of(choice) == ""
    assert num_empty >= 1
    assert events[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_text_before_a_stop_string_comes_with_the_end(harness: Harness, path: str) -> None:
    events = counted_events(harness, path, max_tokens=9, stop=["CDEF"])
    texts = [text_of(event["choices"][0]) for event in events]
    assert "".join(texts) == "B"
    last = events[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", "CDEF")
    assert events[-1]["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_logprobs_come_with_their_tokens(harness: Harness, path: str, n: int) -> None:
    wanted = {"logprobs": 1} if path == COMPLETIONS else {"logprobs": True, "top_logprobs": 1}
    events = counted_events(
        harness, path, max_tokens=8, stop="CDEFGX", n=n, return_token_ids=True, **wanted
    )
    counts = dict.fromkeys(range(n), 0)
    for event in events:
        (choice,) = event["choices"]
        counts[choice["index"]] += len(choice["token_ids"])
        assert event["usage"]["completion_tokens"] == counts[choice["index"]]
        logprobs = choice["logprobs"]
        entries = logprobs["tokens"] if path == COMPLETIONS else logprobs["content"]
        assert len(entries) == len(choice["token_ids"]) > 0
    assert set(counts.values()) == {8}


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 250},  # through bytes that are no text by themselves
        {"max_tokens": 250, "stream_interval": 7},
        {"max_tokens": 40, "stop": ["MNOQ", "Z["], "n": 3},
        {"max_tokens": 40, "stop": "MN", "include_stop_str_in_output": True},
        {"max_tokens": 40, "stop": "MN", "min_tokens": 30, "n": 2},
        {"max_tokens": 1, "n": 2},
    ],
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_stream_adds_up_to_the_reply_in_one_piece(
    harness: Harness, path: str, fields: dict[str, Any]
) -> None:
    wanted = {"logprobs": 1} if path == COMPLETIONS else {"logprobs": True, "top_logprobs": 1}
    fields = {**fields, **wanted, "return_token_ids": True}
    whole = harness.post(path, body_of(path, **fields)).json()
    events = counted_events(harness, path, **fields)
    for choice in whole["choices"]:
        parts = [
            event["choices"][0]
            for event in events
            if event["choices"][0]["index"] == choice["index"]
        ]
        assert "".join(text_of(part) for part in parts) == text_of(choice)
        assert [i for part in parts for i in part["token_ids"]] == choice["token_ids"]
        for name in choice["logprobs"]:
            if choice["logprobs"][name] is not None:
                joined = [entry for part in parts for entry in part["logprobs"][name]]
                assert joined == choice["logprobs"][name]
        ends = [(part["finish_reason"], part["stop_reason"]) for part in parts]
        assert ends[-1] == (choice["finish_reason"], choice["stop_reason"])
        assert set(ends[:-1]) <= {(None, None)}
    told = {event["choices"][0]["index"]: event["usage"]["completion_tokens"] for event in events}
    assert sum(told.values()) == whole["usage"]["completion_tokens"]
