"""Hostile replies over HTTP: no server error, no hang, and streams that say what whole replies do.

`QUIRE_HOSTILE_REPLIES` is how many to try.
"""

from __future__ import annotations

import json
import os
from typing import Any

import httpx
import pytest
from hostile_replies import HostileCore

from quire.parsers.format import ReplyFormat
from quire.parsers.reasoning_tags import ReasoningTags
from quire.parsers.tool_formats.hermes import HermesCalls

from .conftest import MakeHarness

COUNT = int(os.environ.get("QUIRE_HOSTILE_REPLIES", "30"))
USER = {"role": "user", "content": "x"}
SCHEMA = {"type": "object"}
CHAT = {
    "messages": [USER],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
}
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": {
        "input": "x", "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
    },
    "/v1/messages": {
        "model": "tiny", "messages": [USER], "max_tokens": 400,
        "tools": [{"name": "f", "input_schema": SCHEMA}],
    },
}  # fmt: skip


@pytest.mark.sweep(1)
@pytest.mark.parametrize("path", list(ASKED))
def test_hostile_replies(make_harness: MakeHarness, path: str) -> None:
    harness = make_harness(core=HostileCore)
    harness.model.found_format = ReplyFormat(ReasoningTags("<think>", "</think>"), HermesCalls())

    async def scenario(client: httpx.AsyncClient) -> None:
        for number in range(COUNT):
            whole = await client.post(path, json=ASKED[path])
            assert whole.status_code == 200, (number, whole.text)
            stream = await client.post(path, json={**ASKED[path], "stream": True})
            assert stream.status_code == 200, (number, stream.text)
            lines = [line[6:] for line in stream.text.splitlines() if line.startswith("data: ")]
            events = [json.loads(line) for line in lines if line != "[DONE]"]
            assert not any("error" in event and event["error"] for event in events), number
            if path == "/v1/chat/completions":
                [choice] = whole.json()["choices"]
                assert summed(events) == said(choice["message"]), number

    harness.run(scenario)


def said(message: dict[str, Any]) -> list[Any]:
    """What a message says."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    texts = [message[name] or "" for name in ("content", "reasoning")]
    return [*texts, [[call["name"], call["arguments"]] for call in calls]]


def summed(events: list[dict[str, Any]]) -> list[Any]:
    """What the deltas of a stream say together."""
    texts, calls = {"content": "", "reasoning": ""}, list[list[str]]()
    for event in events:
        delta = event["choices"][0]["delta"]
        for name in texts:
            texts[name] += delta.get(name) or ""
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(calls):
                calls.append([call["function"]["name"], ""])
            calls[call["index"]][1] += call["function"].get("arguments") or ""
    return [*texts.values(), calls]
