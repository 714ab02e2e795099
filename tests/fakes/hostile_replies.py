"""Replies that no well-behaved model writes, and a core that gives them one after the other."""

from __future__ import annotations

import random

from fake_core import FakeCore
from scripted_core import END, token_ids_of

from quire.protocol import EngineCoreOutput, EngineCoreRequest

_PIECES = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_call>\n", '{"name": "f", ',
    '"arguments": ', '{"name": "nobody", "arguments": {}}', '{"name": "f", "arguments": {"a": 1}}',
    '"arguments": "{\\"a\\": ', "{", "}", "[", "]", '"', "\\", "\\u", "\\ud83d", "null", "1e999",
    "<tool_", "call>", "</thi", "nk>", "é", "🎌", "\x00", "\ufffd", " ", "\n\n", "a" * 40, "{" * 30,
    '{"arguments": {}, "name": ', '"f"', ": ", ", ", "<|im_start|>", "<|endoftext|>",
)  # fmt: skip


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
