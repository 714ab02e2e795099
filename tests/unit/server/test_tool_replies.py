"""Tool calls and reasoning in replies of `/v1/chat/completions`, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest

from quire.parsers.detection.found import FoundFormat
from quire.parsers.format import ReplyFormat
from quire.parsers.tool_formats.hermes import HermesCalls
from quire.parsers.tool_formats.mistral import MistralCalls

from .conftest import Harness
from .test_completions import events_of

CHAT = "/v1/chat/completions"
CALLS = (
    '<think>hm</think>I look.\n<tool_call>\n{"name": "f", "arguments": {"a": "\u00e9"}}\n'
    '</tool_call>\n<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
)


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


BODY = {
    "messages": [{"role": "user", "content": "x"}], "tools": [tool("f"), tool("g")],
    "max_tokens": 400,
}  # fmt: skip


def ask(harness: Harness, **fields: Any) -> Any:
    """The choice of a whole reply."""
    reply = harness.post(CHAT, {**BODY, **fields})
    assert reply.status_code == 200, reply.text
    [choice] = reply.json()["choices"]
    return choice


def streamed(harness: Harness, **fields: Any) -> Any:
    """The choice that a stream's deltas make, as a client of OpenAI's sums them."""
    message: dict[str, Any] = {}
    reason = None
    for event in events_of(harness.post(CHAT, {**BODY, **fields, "stream": True})):
        [choice] = event["choices"]
        reason = choice["finish_reason"] or reason
        delta = choice["delta"]
        for name in ("content", "reasoning"):
            if name in delta:
                message[name] = message.get(name, "") + delta[name]
        for call in delta.get("tool_calls", ()):
            calls = message.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                assert call["id"]
                assert call["type"] == "function"
                assert call["function"]["name"]
                calls.append({"name": call["function"]["name"], "arguments": ""})
            else:
                assert "id" not in call
                assert "name" not in call["function"]
            calls[call["index"]]["arguments"] += call["function"]["arguments"]
    return message, reason


def called(message: Any) -> list[tuple[str, str]]:
    functions = [call.get("function", call) for call in message.get("tool_calls", ())]
    return [(function["name"], function["arguments"]) for function in functions]


def test_a_reply_with_reasoning_content_and_two_calls(make_scripted: Any) -> None:
    harness = make_scripted(CALLS)
    choice = ask(harness)
    message = choice["message"]
    assert (message["reasoning"], message["content"]) == ("hm", "I look.")
    assert called(message) == [("f", '{"a": "\u00e9"}'), ("g", "{}")]
    ids = [call["id"] for call in message["tool_calls"]]
    assert all(one.startswith("chatcmpl-tool-") for one in ids)
    assert len(set(ids)) == 2
    assert choice["finish_reason"] == "tool_calls"
    summed, reason = streamed(harness)
    assert reason == "tool_calls"
    assert called(summed) == called(message)
    assert (summed["reasoning"], summed["content"]) == ("hm", "I look.")


def test_ids_in_the_form_that_the_model_reads(make_scripted: Any) -> None:
    harness = make_scripted('[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]Xy3456789[ARGS]{}')
    harness.model.found_format = ReplyFormat(None, MistralCalls())
    message = ask(harness)["message"]
    assert called(message) == [("f", '{"a": 1}'), ("g", "{}")]
    made, written = (call["id"] for call in message["tool_calls"])
    assert len(made) == 9
    assert made.isalnum()
    assert written == "Xy3456789"


def test_content_is_null_where_there_are_calls_alone(make_scripted: Any) -> None:
    harness = make_scripted('<tool_call>{"name": "f", "arguments": {}}</tool_call>')
    assert ask(harness)["message"]["content"] is None
    assert streamed(harness)[0]["content"] == ""  # of the first chunk, which tells the role


def test_a_named_tool_ends_with_stop(make_scripted: Any) -> None:
    named = {"type": "function", "function": {"name": "f"}}
    harness = make_scripted('<tool_call>{"name": "f", "arguments": {}}</tool_call>')
    choice = ask(harness, tool_choice=named)
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "")
    assert streamed(harness, tool_choice=named)[1] == "stop"


def test_earlier_names_of_fields(make_scripted: Any) -> None:
    harness = make_scripted(CALLS)
    fields = {"tools": None, "functions": [{"name": "f"}, {"name": "g"}]}
    choice = ask(harness, **fields)
    expected = {"name": "f", "arguments": '{"a": "\u00e9"}'}
    assert choice["message"]["function_call"] == expected
    assert choice["finish_reason"] == "function_call"
    assert "tool_calls" not in choice["message"]
    deltas = [
        event["choices"][0]["delta"].get("function_call", {})
        for event in events_of(harness.post(CHAT, {**BODY, **fields, "stream": True}))
    ]
    assert "".join(delta.get("name", "") for delta in deltas) == "f"
    assert "".join(delta.get("arguments", "") for delta in deltas) == expected["arguments"]


def test_tokens_of_reasoning_are_counted(make_scripted: Any) -> None:
    harness = make_scripted("<think>hm\u00e9\n</think>x")
    usage = harness.post(CHAT, BODY).json()["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 5}  # bytes are tokens
    options = {"stream": True, "stream_options": {"include_usage": True}}
    last = events_of(harness.post(CHAT, {**BODY, **options}))[-1]
    assert last["usage"] == usage


class MistralLike(HermesCalls):
    """Hermes, but that a special token begins a call, and ids have a form of their own."""

    markers = ("<|im_start|>",)
    before = "<|im_start|>"

    def make_id(self, name: str, index: int) -> str | None:
        return f"{name}:{index}"


def test_marks_that_are_special_tokens_are_found_and_others_left_out(make_scripted: Any) -> None:
    harness = make_scripted('<|endoftext|>So<|im_start|>{"name": "f", "arguments": {}}')
    harness.model.found_format = ReplyFormat(None, MistralLike())
    before = [
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        ]},
        {"role": "tool", "tool_call_id": "f:0", "content": "1"},
    ]  # fmt: skip
    message = ask(harness, messages=[*BODY["messages"], *before], ignore_eos=True)["message"]
    assert message["content"] == "So"
    assert called(message) == [("f", "{}")]
    assert [call["id"] for call in message["tool_calls"]] == ["f:1"]
    text = ask(harness, tool_choice="none", ignore_eos=True)["message"]["content"]
    assert text == 'So{"name": "f", "arguments": {}}'


def test_a_template_without_tools_is_told_of_them_in_words(make_scripted: Any) -> None:
    harness = make_scripted('<tool_call>{"name": "f", "arguments": {}}</tool_call>')

    class NothingFound:
        found = FoundFormat(ReplyFormat())

    harness.model.found_format, harness.model.formats = ReplyFormat(), NothingFound()
    body = {**BODY, "truncate_prompt_tokens": 100}  # of its tokens, which are bytes
    assert called(ask(harness, **body)["message"]) == [("f", "{}")]
    prompt = harness.post(f"{CHAT}/render", body).json()["prompt"]
    assert "You can call tools" in prompt
    assert '{"name": "f", "parameters": {"type": "object"}}' in prompt
    without = harness.post(f"{CHAT}/render", {**body, "tool_choice": "none"}).json()["prompt"]
    assert "You can call tools" not in without


def test_reasoning_can_be_left_out(make_scripted: Any) -> None:
    harness = make_scripted(CALLS)
    assert ask(harness, include_reasoning=False)["message"]["reasoning"] is None
    assert "reasoning" not in streamed(harness, include_reasoning=False)[0]


def test_reasoning_goes_where_a_request_asks(make_scripted: Any) -> None:
    harness = make_scripted(CALLS)
    message = ask(harness, reasoning_format="deepseek")["message"]
    assert message["reasoning_content"] == "hm"
    assert "reasoning" not in message
    body = {**BODY, "reasoning_format": "deepseek", "stream": True}
    deltas = [event["choices"][0]["delta"] for event in events_of(harness.post(CHAT, body))]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
    message = ask(harness, reasoning_format="none")["message"]
    assert message["content"] == "<think>hm</think>I look."
    assert message["reasoning"] is None


def test_a_call_that_is_cut_short(make_scripted: Any) -> None:
    choice = ask(make_scripted(CALLS), max_tokens=80)
    assert choice["finish_reason"] == "length"
    assert called(choice["message"])[0][0] == "f"


@pytest.mark.parametrize(
    ("fields", "parameter", "words"),
    [
        ({"tools": []}, "tools", "empty"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice", "`tools` must be set"),
        ({"tool_choice": "always"}, "tool_choice", "Only named tools"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function", "Correct usage"),
        ({"tool_choice": {"function": {}}}, "tool_choice.function.name", "Expected field `name`"),
        ({"tool_choice": {"function": {"name": ""}}}, "tool_choice.function.name", "Invalid"),
        ({"tool_choice": {"function": {"name": "h"}}}, "tool_choice", "does not match any"),
        ({"tools": [tool("f"), tool("f")]}, "tools[1].function.name", "another tool"),
        ({"functions": [{"name": "f"}]}, "functions", "not both"),
        (
            {"tools": None, "functions": [{"name": "f"}], "function_call": {"name": "h"}},
            "function_call", "does not match any of the specified `functions`",
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": []}}},
            "tool_choice", "allowed_tools.tools",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    make_scripted: Any, fields: Any, parameter: str, words: str
) -> None:
    reply = make_scripted("x").post(CHAT, {**BODY, **fields})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, parameter)
    assert words in error["message"]


@pytest.mark.parametrize("end", ["<tool_c", '"na', '"f', '"arguments": {"a', "}}\n</to", '"g'])
def test_a_call_that_max_tokens_cut_leaves_no_marks(make_scripted: Any, end: str) -> None:
    harness = make_scripted(CALLS)
    text = CALLS[: CALLS.index(end) + len(end)]
    whole = ask(harness, max_tokens=len(text.encode()))
    message, reason = streamed(harness, max_tokens=len(text.encode()))
    assert whole["finish_reason"] == reason == "length"
    assert whole["message"]["content"] == message["content"] == "I look."
    calls = {"<": [], '"n': [], '"f': [], '"a': [("f", '{"a')]}.get(end[: 2 - (end[0] == "<")])
    expected = [("f", '{"a": "\u00e9"}')] if calls is None else calls
    assert called(whole["message"]) == called(message) == expected


@pytest.mark.parametrize(
    ("stop", "reason", "calls"),
    [
        ('"a"', "stop", [("f", "{")]),
        ("}}", "stop", [("f", '{"a": "\u00e9"')]),
        ("</tool_call>", "tool_calls", [("f", '{"a": "\u00e9"}')]),
        ('"g"', "tool_calls", [("f", '{"a": "\u00e9"}')]),
        ('"f"', "stop", []),
    ],
)
def test_a_stop_string_in_a_call(make_scripted: Any, stop: str, reason: str, calls: Any) -> None:
    harness = make_scripted(CALLS)
    whole = ask(harness, stop=[stop])
    message, streamed_reason = streamed(harness, stop=[stop])
    assert whole["finish_reason"] == streamed_reason == reason
    assert whole["message"]["content"] == message["content"] == "I look."
    assert called(whole["message"]) == called(message) == calls


def test_a_stop_string_that_is_shown_stays(make_scripted: Any) -> None:
    fields = {"stop": ["<tool_call>"], "include_stop_str_in_output": True}
    harness = make_scripted(CALLS)
    assert ask(harness, **fields)["message"]["content"] == "I look.\n<tool_call>"
    assert streamed(harness, **fields)[0]["content"] == "I look.\n<tool_call>"
