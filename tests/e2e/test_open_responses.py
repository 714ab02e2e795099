"""The cases of Open Responses' compliance tests (openresponses.org, specification of 2026-04-24).

Its types want fields of a response that other clients do not miss. Of its cases the one with an
image is refused here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import quire

from .running_server import RunningServer

FIELDS = {
    "id": str, "object": str, "created_at": int, "completed_at": int | None, "status": str,
    "incomplete_details": dict | None, "model": str, "previous_response_id": str | None,
    "instructions": str | None, "output": list, "error": dict | None, "tools": list,
    "tool_choice": str | dict, "truncation": str, "parallel_tool_calls": bool, "text": dict,
    "top_p": float | int, "presence_penalty": float | int, "frequency_penalty": float | int,
    "top_logprobs": int, "temperature": float | int, "reasoning": dict | None,
    "usage": dict | None, "max_output_tokens": int | None, "max_tool_calls": int | None,
    "store": bool, "background": bool, "service_tier": str, "metadata": dict,
    "safety_identifier": str | None, "prompt_cache_key": str | None,
}  # fmt: skip
ITEMS: dict[str, dict[str, Any]] = {
    "message": {"id": str, "status": str, "role": str, "content": list},
    "function_call": {"id": str, "call_id": str, "name": str, "arguments": str, "status": str},
}
TEXT = {"type": str, "text": str, "annotations": list, "logprobs": list}
TOOL = {
    "type": str, "name": str, "description": str | None, "parameters": dict | None,
    "strict": bool | None,
}  # fmt: skip
WEATHER = {
    "type": "function", "name": "get_weather",
    "parameters": {
        "type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"],
    },
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "text": {"input": [("user", "Say hello in exactly 3 words.")]},
    "stream": {"input": [("user", "Count from 1 to 5.")], "stream": True},
    "system": {"input": [("system", "You are a pirate."), ("user", "Say hello.")]},
    "turns": {
        "input": [
            ("user", "My name is Alice."), ("assistant", "Hello Alice!"),
            ("user", "What is my name?"),
        ],
    },
    "call": {"input": [("user", "What is the weather in San Francisco?")], "tools": [WEATHER]},
    "streamed call": {
        "input": [("user", "What is the weather in San Francisco?")], "tools": [WEATHER],
        "stream": True,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    model = Path(quire.__file__).parent / "demo_model"
    running = RunningServer({"model": model, "served_model_name": "demo"}, {"port": 0})
    yield running.wait_until_serving()
    running.stop()


def has_fields(value: dict[str, Any], fields: dict[str, Any]) -> None:
    for name, kind in fields.items():
        assert name in value, name
        assert isinstance(value[name], kind), (name, value[name])


def is_well_formed(response: dict[str, Any]) -> None:
    has_fields(response, FIELDS)
    for tool in response["tools"]:
        has_fields(tool, TOOL)
    for item in response["output"]:
        has_fields(item, ITEMS[item["type"]])
        for part in item.get("content", ()):
            has_fields(part, TEXT)
    # These may be left out, and may not be null.
    assert response["text"].get("verbosity", "low") is not None
    assert response["text"]["format"] == {"type": "text"}
    assert set(response["reasoning"]) >= {"effort", "summary"}


def events_of(reply: httpx.Response) -> list[dict[str, Any]]:
    lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize("name", CASES)
def test_case(server: RunningServer, name: str) -> None:
    case = CASES[name]
    turns = [{"type": "message", "role": role, "content": text} for role, text in case["input"]]
    with server.client() as client:
        body = {"model": "demo", **case, "input": turns}
        reply = client.post("/v1/responses", json=body).raise_for_status()
    if not case.get("stream"):
        response = reply.json()
    else:
        events = events_of(reply)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        for event in events:
            if "response" in event:
                is_well_formed(event["response"])
        response = events[-1]["response"]
    is_well_formed(response)
    assert response["status"] == "completed"
    assert response["output"]
    if "tools" in case:
        [call] = response["output"]
        assert call["type"] == "function_call"
        assert "San Francisco" in json.loads(call["arguments"])["location"]
    if name == "streamed call":
        kinds = [event["type"] for event in events]
        for kind in ("output_item.added", "function_call_arguments.delta",
                     "function_call_arguments.done", "output_item.done"):  # fmt: skip
            assert f"response.{kind}" in kinds
