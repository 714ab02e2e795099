"""Replies of `/v1/messages`, whole and streamed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fake_core import FakeCore
from starlette.types import Message, Receive, Scope, Send

from quire.errors import CapacityError
from quire.protocol import EngineCoreOutputs
from quire.server.apis.messages.writing import MESSAGES_FORM
from quire.server.http.event_stream import EventStream

from .conftest import MakeHarness, MakeScripted
from .messages_client import BODY, PATH, TOOLS, create, events_of, same, streamed

CALLS = (
    '<think>hm, é</think>I look.\n<tool_call>\n{"name": "f", "arguments": '
    '{"a": "é\\n", "b": [1]}}\n</tool_call>\n'
    '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
)


def kinds(message: Any) -> list[str]:
    return [block["type"] for block in message["content"]]


def both(harness: Any, **fields: Any) -> Any:
    """The reply, which is the same whole and streamed."""
    whole, stream = create(harness, **fields), streamed(harness, **fields)
    assert same(whole, stream), (whole, stream)
    return whole


def test_a_reply_with_thinking_text_and_two_calls(make_scripted: MakeScripted) -> None:
    message = both(make_scripted(CALLS), tools=TOOLS)
    thinking, text, f, g = message["content"]
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "tiny")
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "hm, é")
    assert thinking["signature"]
    assert text == {"type": "text", "text": "I look."}
    assert (f["type"], f["name"], f["input"]) == ("tool_use", "f", {"a": "é\n", "b": [1]})
    assert (g["type"], g["name"], g["input"]) == ("tool_use", "g", {})
    assert len({f["id"], g["id"], ""}) == 3


def test_a_signature_is_of_its_thinking(make_scripted: MakeScripted) -> None:
    signatures = [
        create(make_scripted(f"<think>{words}</think>x"))["content"][0]["signature"]
        for words in ("a", "b", "a")
    ]
    assert signatures[0] == signatures[2] != signatures[1]


def test_the_signature_comes_right_before_the_end_of_the_thinking(
    make_scripted: MakeScripted,
) -> None:
    body = {**BODY, "stream": True}
    events = events_of(make_scripted("<think>hm</think>x").post(PATH, body))
    types = [(event.get("delta") or {}).get("type", event["type"]) for event in events]
    at = types.index("signature_delta")
    assert types.count("signature_delta") == 1
    assert types[at - 1] == "thinking_delta"
    assert types[at + 1] == "content_block_stop"


def test_text_after_a_call_is_a_block_of_its_own(make_scripted: MakeScripted) -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    message = both(make_scripted(f"a {call} b {call} c"), tools=TOOLS)
    assert kinds(message) == ["text", "tool_use", "text", "tool_use", "text"]


def test_a_schema_that_no_grammar_can_hold_is_accepted(make_scripted: MakeScripted) -> None:
    """Unless the tool is strict: tools of agents have all kinds of schemas."""
    schema = {"type": "object", "properties": {"a": {"propertyNames": {"pattern": "^x"}}}}
    text = '<tool_call>{"name": "f", "arguments": {"a": 5}}</tool_call>'
    harness = make_scripted(text)
    tool = {"name": "f", "input_schema": schema}
    assert both(harness, tools=[tool])["content"][0]["input"] == {"a": 5}
    reply = harness.post(PATH, {**BODY, "tools": [{**tool, "strict": True}]})
    assert reply.status_code == 400
    assert "tools[0].input_schema" in reply.json()["error"]["message"]


def test_a_reply_that_says_nothing_has_an_empty_text(make_scripted: MakeScripted) -> None:
    message = both(make_scripted(""))
    assert message["content"] == [{"type": "text", "text": ""}]
    assert message["stop_reason"] == "end_turn"


def test_a_reply_that_is_cut_while_it_thinks(make_scripted: MakeScripted) -> None:
    message = both(make_scripted("<think>never ends"), max_tokens=12)
    assert (kinds(message), message["stop_reason"]) == (["thinking"], "max_tokens")
    assert message["usage"]["output_tokens"] == 12


@pytest.mark.parametrize("max_tokens", range(20, 75, 6))
def test_a_call_that_is_cut_has_what_is_complete(
    make_scripted: MakeScripted, max_tokens: int
) -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": 1, "b": {"c": "some text"}}}</tool_call>'
    harness = make_scripted(text)
    whole = create(harness, tools=TOOLS, max_tokens=max_tokens)
    assert whole["stop_reason"] == "max_tokens"
    if kinds(whole) == ["tool_use"]:
        assert whole["content"][0]["input"] in ({}, {"a": 1}, {"a": 1, "b": {}},
                                                {"a": 1, "b": {"c": "some text"}})  # fmt: skip


def test_arguments_that_are_no_json_are_made_so(make_scripted: MakeScripted) -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": "x\ny", "b": [1, oh], "c": 2}}</tool_call>'
    message = both(make_scripted(text), tools=TOOLS)
    assert message["content"][-1]["input"] == {"a": "x\ny", "b": [1]}
    assert message["stop_reason"] == "tool_use"


def test_stop_sequences_are_named(make_scripted: MakeScripted) -> None:
    message = both(make_scripted("one two three"), stop_sequences=["three", "two"])
    assert message["content"] == [{"type": "text", "text": "one "}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "two")


def test_a_call_cut_by_a_stop_sequence_is_not_to_be_run(make_scripted: MakeScripted) -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": "stop here"}}</tool_call>'
    message = create(make_scripted(text), tools=TOOLS, stop_sequences=["here"])
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "here")


def test_a_stop_sequence_after_a_call_leaves_it_a_call(make_scripted: MakeScripted) -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call> END'
    message = both(make_scripted(text), tools=TOOLS, stop_sequences=["END"])
    assert message["stop_reason"] == "tool_use"


def test_a_forced_call_ends_with_tool_use(make_scripted: MakeScripted) -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    for choice in ({"type": "any"}, {"type": "tool", "name": "f"}):
        message = both(make_scripted(text), tools=TOOLS, tool_choice=choice)
        assert message["stop_reason"] == "tool_use"


def test_a_limit_beyond_the_context_ends_with_the_context(make_scripted: MakeScripted) -> None:
    harness = make_scripted("x" * 2000)
    message = both(harness, max_tokens=100_000)
    assert message["stop_reason"] == "model_context_window_exceeded"
    usage = message["usage"]
    assert usage["input_tokens"] + usage["output_tokens"] == 512
    room = usage["output_tokens"]
    assert create(harness, max_tokens=room)["stop_reason"] == "max_tokens"


def test_usage_counts_prompt_and_reply(make_scripted: MakeScripted) -> None:
    harness = make_scripted("abc")
    start, *_, delta, _ = events_of(harness.post(PATH, {**BODY, "stream": True}))
    count = harness.post(f"{PATH}/count_tokens", {k: BODY[k] for k in ("model", "messages")})
    assert start["message"]["usage"] == {
        "input_tokens": count.json()["input_tokens"], "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0, "output_tokens": 0,
    }  # fmt: skip
    assert delta["usage"]["output_tokens"] == 4
    assert delta["usage"]["input_tokens"] == count.json()["input_tokens"]


def test_usage_tells_the_tokens_of_thinking(make_scripted: MakeScripted) -> None:
    text = "<think>hm</think>abc"
    message = both(make_scripted(text))
    assert message["usage"]["output_tokens"] == len(text) + 1
    details = message["usage"]["output_tokens_details"]
    assert details == {"thinking_tokens": len("hm")}


async def test_a_stream_without_news_is_kept_alive_by_pings() -> None:
    """And one that fails ends with an error in the API's form."""
    bodies: list[bytes] = []
    is_next_due = asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        await is_next_due.wait()
        raise CapacityError("full")
        yield b""

    async def send(message: Message) -> None:
        bodies.append(message.get("body", b""))
        if bodies[-1]:
            is_next_due.set()

    stream = EventStream(parts(), lambda: None, form=MESSAGES_FORM, keep_alive_s=0.01)
    await stream({}, asyncio.Event().wait, send)  # type: ignore[arg-type]
    _, ping, error, end = bodies
    assert ping == b'event: ping\ndata: {"type":"ping"}\n\n'
    assert error == (
        b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"full"}}'
        b"\n\n"
    )
    assert end == b""


def test_pings_need_no_option(make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowCore(FakeCore):
        def step(self) -> EngineCoreOutputs:
            time.sleep(0.3)
            return super().step()

    monkeypatch.setattr("quire.server.apis.messages.routes._PING_S", 0.05)
    reply = make_harness(core=SlowCore).post(PATH, {**BODY, "max_tokens": 1, "stream": True})
    assert events_of(reply)[0] == {"type": "ping"}


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_request_that_the_server_aborts_ends_with_an_error(
    make_scripted: MakeScripted, is_streamed: bool
) -> None:
    harness = make_scripted("x" * 300, step_s=0.002, enable_dev_routes=True)
    app, has_begun = harness.app, asyncio.Event()

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            await send(message)
            has_begun.set()

        await app(scope, receive, sent)

    async def aborted(client: httpx.AsyncClient) -> httpx.Response:
        body = {**BODY, "stream": is_streamed}
        asking = asyncio.create_task(client.post(PATH, json=body))
        if is_streamed:  # an error before the first event would have a status of its own
            await has_begun.wait()
        while not harness.context.num_generating:
            await asyncio.sleep(0.01)
        await client.post("/pause?mode=abort")
        return await asking

    harness.app = watched
    reply = harness.run(aborted)
    assert reply.status_code == (200 if is_streamed else 500)
    error = events_of(reply)[-1] if is_streamed else reply.json()
    assert error["error"]["type"] == "api_error"
    assert "aborted" in error["error"]["message"]
