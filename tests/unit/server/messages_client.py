"""Requests of `/v1/messages`, and what their replies and streams say."""

from __future__ import annotations

import json
from typing import Any

import httpx

from .conftest import Harness

PATH = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
TOOLS = [
    {"name": name, "description": name * 3, "input_schema": {"properties": {}}}
    for name in ("f", "g")
]
BODY: dict[str, Any] = {
    "model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 400,
}  # fmt: skip


def create(harness: Harness, **fields: Any) -> Any:
    """A whole reply."""
    reply = harness.post(PATH, {**BODY, **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


def events_of(reply: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, whose names are their types."""
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = []
    for text in reply.text.split("\n\n"):
        if text:
            name, _, data = text.partition("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
    return events


def streamed(harness: Harness, **fields: Any) -> Any:
    """The message that the events of a stream make, which are checked to be in order."""
    events = events_of(harness.post(PATH, {**BODY, **fields, "stream": True}))
    message = events[0]["message"]
    assert events[0]["type"] == "message_start"
    assert (message["content"], message["stop_reason"]) == ([], None)
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    is_open = False
    for event in events[1:-2]:
        kind = event["type"].removeprefix("content_block_")
        assert is_open == (kind != "start")
        if kind == "start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
            text, is_open = "", True
            continue
        assert event["index"] == len(message["content"]) - 1
        block = message["content"][-1]
        if kind == "stop":
            if block["type"] == "tool_use":
                assert block["input"] == {}
                block["input"] = json.loads(text or "{}")
            is_open = False
            continue
        delta = event["delta"]
        if delta["type"] == "input_json_delta":
            text += delta["partial_json"]
        else:
            name = delta["type"].removesuffix("_delta")
            assert not block.get("signature")
            block[name] += delta[name]
    assert not is_open
    message |= events[-2]["delta"]
    message["usage"] |= events[-2]["usage"]
    return message


def same(whole: Any, stream: Any) -> bool:
    """Whether two replies say the same; ids are random."""

    def comparable(message: Any) -> Any:
        blocks = [{**block, "id": block.get("id") and ""} for block in message["content"]]
        return {**message, "id": "", "content": blocks}

    return bool(comparable(whole) == comparable(stream))
