"""Asks for responses, and adds up their streams as a client does."""

from __future__ import annotations

import json
from typing import Any

from server.conftest import Harness

RESPONSES = "/v1/responses"


def function(name: str, **fields: Any) -> dict[str, Any]:
    """A tool."""
    return {"type": "function", "name": name, "parameters": {"type": "object"}, **fields}


def body_of(**fields: Any) -> dict[str, Any]:
    return {
        "input": "x",
        "tools": [function("f"), function("g")],
        "max_output_tokens": 400,
        **fields,
    }


def whole(harness: Harness, **fields: Any) -> Any:
    """The response."""
    reply = harness.post(RESPONSES, body_of(**fields))
    assert reply.status_code == 200, reply.text
    return reply.json()


def refused(harness: Harness, status: int = 400, **fields: Any) -> Any:
    """The error that answers a request."""
    reply = harness.post(RESPONSES, body_of(**fields))
    assert reply.status_code == status, reply.text
    return reply.json()["error"]


def events_in(text: str) -> list[Any]:
    """The events of a stream, whose names are their types."""
    events = []
    for block in text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    assert not text or text.endswith("\n\n")
    return events


def streamed(harness: Harness, **fields: Any) -> list[Any]:
    """The events of a response, whose numbers and sums are checked."""
    reply = harness.post(RESPONSES, body_of(**fields, stream=True))
    assert reply.headers["content-type"].startswith("text/event-stream"), reply.text
    events = events_in(reply.text)
    check_stream(events)
    return events


def check_stream(events: list[Any]) -> None:
    """Numbers, order and sums: what is told in parts is what is told as a whole."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] in ("response.completed", "response.incomplete", "response.failed")
    output = events[-1]["response"]["output"]
    items: list[Any] = []
    texts: dict[str, str] = {}
    for event in events:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert event["output_index"] == len(items)
            assert event["item"]["status"] == "in_progress"
            items.append(event["item"])
            texts[event["item"]["id"]] = ""
        elif kind.endswith(".delta"):
            assert event["item_id"] == items[-1]["id"]
            texts[event["item_id"]] += event["delta"]
        elif kind == "response.output_item.done":
            assert event["output_index"] == len(items) - 1
            assert event["item"] == output[event["output_index"]]
            assert text_of(event["item"]) == texts[event["item"]["id"]]
        elif kind.endswith((".text.done", ".output_text.done", ".reasoning_text.done")):
            assert event["text"] == texts[event["item_id"]]
    assert len(items) == len(output)


def text_of(item: Any) -> str:
    if "content" in item:
        return "".join(part["text"] for part in item["content"])
    return item["arguments"] if "arguments" in item else item["input"]


def without_ids(response: Any) -> Any:
    """A response without what differs between two that say the same."""
    if isinstance(response, list):
        return [without_ids(each) for each in response]
    if not isinstance(response, dict):
        return response
    random = ("id", "call_id", "created_at", "completed_at")
    return {name: without_ids(each) for name, each in response.items() if name not in random}
