"""Hostile replies over HTTP: no server error, no hang, and streams that say what whole replies do.

`QUIRE_HOSTILE_REPLIES` is how many to try.
"""

from __future__ import annotations

import json
import os
import random
from typing import Any

import pytest
from fake_core import FakeCore
from scripted_core import END, token_ids_of

from quire.parsers.format import ReplyFormat
from quire.parsers.reasoning_tags import ReasoningTags
from quire.parsers.tool_formats.hermes import HermesCalls
from quire.protocol import EngineCoreOutput, EngineCoreRequest

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
_PIECES = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_call>\n", '{"name": "f", ',
    '"arguments": ', '{"name": "nobody", "arguments": {}}', '{"name": "f", "arguments": {"a": 1}}',
    '"arguments": "{\\"a\\": ', "{", "}", "[", "]", '"', "\\", "\\u", "\\ud83d", "null", "1e999",
    "<tool_", "call>", "</thi", "nk>", "é", "🎌", "\x00", "\ufffd", " ", "\n\n", "a" * 40, "{" * 30,
    '{"arguments": {}, "name": ', '"f"', ": ", ", ", "<|im_start|>", "<|endoftext|>",
)  # fmt: skip


@pytest.mark.sweep(1)
@pytest.mark.parametrize("path", list(ASKED))
async def test_hostile_replies(make_harness: MakeHarness, path: str) -> None:
    harness = make_harness(core=HostileCore)
    harness.model.found_format = ReplyFormat(ReasoningTags("<think>", "</think>"), HermesCalls())

    async with harness.client() as client:
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


def hostile_reply(seed: int) -> list[int]:
    """The tokens of a reply: marks in any order, calls within calls, and bytes that are no text."""
    dice = random.Random(seed)
    token_ids: list[int] = []
    for _ in range(dice.randint(1, 24)):
        if dice.random() < 0.1:
            token_ids += [dice.randrange(256) for _ in range(dice.randint(1, 4))]
        else:
            token_ids += token_ids_of(dice.choice(_PIECES))
    return token_ids[:380]


class HostileCore(FakeCore):
    """Replies to the n-th request with the n-th hostile reply, some tokens a step."""

    num_begun = 0

    def _advance(self, request: EngineCoreRequest) -> EngineCoreOutput:
        request_id, count = request.request_id, self._generated[request.request_id]
        if count == 0:
            self._replies = getattr(self, "_replies", {})
            self._replies[request_id] = [*hostile_reply(self.num_begun // 2), END]
            self.num_begun += 1
        token_ids = self._replies[request_id]
        new = token_ids[count : count + 1 + count % 5]
        self._generated[request_id] = count + len(new)
        output = EngineCoreOutput(
            request_id=request_id, new_token_ids=new, scheduled_time=request.arrival_time
        )
        if count + len(new) >= len(token_ids):
            output.finish_reason = "stop"
            self._forget(request_id)
        return output
