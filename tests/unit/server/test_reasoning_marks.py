"""What the engine is told of the reasoning of chats: its marks, and whether the prompt opens it."""

from __future__ import annotations

from typing import Any

import pytest
from fake_core import FakeCore

from quire.protocol import EngineCoreRequest
from quire.reasoning.marks import ReasoningTokens

from .conftest import MakeHarness, MakeScripted

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[ReasoningTokens | None]:
    """Of each request that reaches a core."""
    found: list[ReasoningTokens | None] = []
    add_request = FakeCore.add_request

    def noted(core: FakeCore, request: EngineCoreRequest) -> None:
        found.append(request.reasoning)
        add_request(core, request)

    monkeypatch.setattr(FakeCore, "add_request", noted)
    return found


def test_a_budget_in_a_chat(
    make_scripted: MakeScripted, told: list[ReasoningTokens | None]
) -> None:
    harness = make_scripted("<think>a</think>b")
    assert harness.post(CHAT, {**BODY, "thinking_token_budget": 4}).status_code == 200
    [marks] = told
    assert marks is not None
    assert (len(marks.begin), len(marks.end)) == (len("<think>"), len("</think>"))
    assert marks.forced_end == marks.end
    assert (marks.opened_at, marks.is_in_grammar) == (None, False)
    wanted = {"response_format": {"type": "json_object"}}
    assert harness.post(CHAT, {**BODY, "thinking_token_budget": 4, **wanted}).status_code == 200
    assert told[1] is not None
    assert told[1].is_in_grammar, "the grammar of a chat has the reasoning in it"


@pytest.mark.parametrize("budget", [None, -1])
def test_no_budget(
    make_scripted: MakeScripted, told: list[ReasoningTokens | None], budget: int | None
) -> None:
    harness = make_scripted("<think>a</think>b")
    wanted = {"type": "json_object"}
    for fields in ({}, {"response_format": wanted}):
        reply = harness.post(CHAT, {**BODY, "thinking_token_budget": budget, **fields})
        assert reply.status_code == 200, reply.text
    assert told == [None, None]


def test_a_budget_for_a_model_that_is_not_known_to_reason(make_harness: MakeHarness) -> None:
    harness = make_harness()
    for path, fields in ((CHAT, BODY), (TEXT, {"prompt": "x"})):
        reply = harness.post(path, {**fields, "thinking_token_budget": 4})
        assert reply.status_code == 400
        error = reply.json()["error"]
        assert error["param"] == "thinking_token_budget"
        assert "set --reasoning-parser" in error["message"]


@pytest.mark.parametrize("budget", [-2, 1.5, "x", True])
def test_a_wrong_budget(make_harness: MakeHarness, budget: Any) -> None:
    reply = make_harness().post(CHAT, {**BODY, "thinking_token_budget": budget})
    assert reply.status_code == 400
    assert "thinking_token_budget" in reply.text
