"""Responses and their streams: items, events, ends."""

from __future__ import annotations

from typing import Any

import pytest

from .asking import RESPONSES, body_of, function, refused, streamed, text_of, whole, without_ids

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "\u00e9"}}\n</tool_call>'
OTHER_CALL = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
REPLIES = {
    "": [("message", "")],
    "Hi \u00e9!": [("message", "Hi \u00e9!")],
    "<think>hm</think>So.": [("reasoning", "hm"), ("message", "So.")],
    "<think>hm</think>" + CALL: [("reasoning", "hm"), ("function_call", '{"a": "\u00e9"}')],
    f"I look.\n{CALL}\n{OTHER_CALL}": [
        ("message", "I look."), ("function_call", '{"a": "\u00e9"}'), ("function_call", "{}"),
    ],
    "<think>hm": [("reasoning", "hm")],
}  # fmt: skip


def shown(response: Any) -> list[tuple[str, str]]:
    return [(item["type"], text_of(item)) for item in response["output"]]


@pytest.mark.parametrize("text", REPLIES)
def test_a_reply_is_its_items(make_scripted: Any, text: str) -> None:
    response = whole(make_scripted(text))
    assert shown(response) == REPLIES[text]
    assert response["status"] == "completed"
    assert response["error"] is None
    assert response["incomplete_details"] is None
    assert {item["status"] for item in response["output"]} == {"completed"}
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


@pytest.mark.parametrize("options", [{}, {"include": ["message.output_text.logprobs"]}])
@pytest.mark.parametrize("text", REPLIES)
def test_a_stream_says_the_same(make_scripted: Any, text: str, options: dict[str, Any]) -> None:
    harness = make_scripted(text)
    events = streamed(harness, **options)
    types = [event["type"] for event in events]
    assert types[:2] == ["response.created", "response.in_progress"]
    assert types[-1] == "response.completed"
    assert "[DONE]" not in types
    both = events[-1]["response"], whole(harness, **options)
    for response in both:
        cut_logprobs(response)
    assert without_ids(both[0]) == without_ids(both[1])


def cut_logprobs(response: Any) -> None:
    """To those of the text: tokens that arrived at once with its begin or its end are other tokens
    from time to time."""
    for item in response["output"]:
        for part in item["content"] if item["type"] == "message" else ():
            text, entries = part["text"].encode(), part["logprobs"]
            written = [bytes(one["bytes"]) for one in entries]
            places = [i for i in range(len(written)) if b"".join(written[i:]).startswith(text)]
            assert places or not entries
            left = len(text)
            part["logprobs"] = []
            for one in entries[places[-1] :] if places else ():
                if left <= 0:
                    break
                left -= len(one["bytes"])
                part["logprobs"].append(one)


def test_the_events_of_each_item(make_scripted: Any) -> None:
    events = streamed(make_scripted(f"<think>h</think>I{CALL}"))
    types = [event["type"].removeprefix("response.") for event in events[2:-1]]
    is_delta = "function_call_arguments.delta"  # tokens that arrive together are one
    assert 1 <= types.count(is_delta) <= 10
    assert [one for one, before in zip(types, [None, *types], strict=False) if one != before] == [
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", is_delta, "function_call_arguments.done", "output_item.done",
    ]  # fmt: skip
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert all(event["logprobs"] == [] for event in deltas)


def test_a_call_has_ids_and_the_name(make_scripted: Any) -> None:
    [item] = whole(make_scripted(CALL))["output"]
    assert item["name"] == "f"
    assert item["id"].startswith("fc_")
    assert item["call_id"] != item["id"]
    assert "namespace" not in item


@pytest.mark.parametrize("text", ["Long text", "<think>Long", CALL.partition("}")[0]])
def test_what_is_cut_is_incomplete(make_scripted: Any, text: str) -> None:
    harness = make_scripted(text)
    events = streamed(harness, max_output_tokens=len(text.encode()) - 2)
    assert events[-1]["type"] == "response.incomplete"
    for response in (
        events[-1]["response"], whole(harness, max_output_tokens=len(text.encode()) - 2),
    ):  # fmt: skip
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["output"][-1]["status"] == "incomplete"


def test_logprobs_go_with_the_text(make_scripted: Any) -> None:
    harness = make_scripted("Hi \u00e9")
    options = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    [item] = whole(harness, **options)["output"]
    [part] = item["content"]
    assert bytes(b for entry in part["logprobs"] for b in entry["bytes"]) == "Hi \u00e9".encode()
    assert {len(entry["top_logprobs"]) for entry in part["logprobs"]} == {2}
    events = streamed(harness, **options)
    told = [
        entry
        for event in events
        if event["type"] == "response.output_text.delta"
        for entry in event["logprobs"]
    ]
    assert told == part["logprobs"]
    assert whole(harness)["output"][0]["content"][0]["logprobs"] == []


def test_reasoning_can_be_left_out(make_scripted: Any) -> None:
    harness = make_scripted("<think>hm</think>So.")
    assert shown(whole(harness, include_reasoning=False)) == [("message", "So.")]


def test_a_custom_tool_is_called_with_a_text(make_scripted: Any) -> None:
    text = '<tool_call>\n{"name": "run", "arguments": {"input": "ls \\"a\\"\\n"}}\n</tool_call>'
    harness = make_scripted(text)
    tools = [{"type": "custom", "name": "run"}]
    [item] = whole(harness, tools=tools)["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "run", 'ls "a"\n')
    types = [event["type"] for event in streamed(harness, tools=tools)]
    assert types[2:-1] == [
        "response.output_item.added", "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done", "response.output_item.done",
    ]  # fmt: skip


def test_a_tool_of_a_namespace_has_its_own_name(make_scripted: Any) -> None:
    harness = make_scripted('<tool_call>\n{"name": "ns__f", "arguments": {}}\n</tool_call>')
    tools = [{"type": "namespace", "name": "ns", "tools": [function("f")]}]
    [item] = whole(harness, tools=tools)["output"]
    assert (item["name"], item["namespace"]) == ("f", "ns")


def test_the_reply_repeats_what_was_asked(make_scripted: Any) -> None:
    asked: dict[str, Any] = {
        "instructions": "Be short.", "temperature": 0.5, "top_p": 0.25, "metadata": {"a": "b"},
        "user": "u", "max_output_tokens": 77, "truncation": "auto", "parallel_tool_calls": False,
        "max_tool_calls": 3, "prompt_cache_key": "k", "safety_identifier": "s", "store": False,
        "prompt_cache_retention": "24h",
        "tool_choice": "auto", "tools": [function("f", strict=True) | {"description": None}],
    }  # fmt: skip
    response = whole(make_scripted("x"), **asked)
    assert {name: response[name] for name in asked} == asked
    assert response["text"]["format"] == {"type": "text"}
    assert response["object"] == "response"
    assert response["id"].startswith("resp_")


def test_the_options_of_a_prompts_cache_are_repeated(make_scripted: Any) -> None:
    harness = make_scripted("x")
    for given, shown in (
        ({}, {}), ({"mode": "explicit", "prewarm": True}, {"mode": "explicit"}),
        ({"ttl": "30m", "comparison_response_id": "r"}, {"comparison_response_id": "r"}),
    ):  # fmt: skip
        body = body_of(prompt_cache_options=given, prompt_cache_retention="in-memory")
        reply = harness.post(RESPONSES, body)
        plain = {"mode": "implicit", "ttl": "30m", "comparison_response_id": None}
        assert reply.json()["prompt_cache_options"] == plain | shown
        assert reply.json()["prompt_cache_retention"] == "in_memory"
        ignored = reply.headers.get("x-quire-ignored-fields", "")
        assert ("prompt_cache_options" in ignored) == bool(given.keys() - {"ttl"})
    assert whole(harness)["prompt_cache_options"] is None
    for wrong in ({"mode": "off"}, {"ttl": "1h"}, "implicit"):
        error = refused(harness, 400, prompt_cache_options=wrong)
        assert error["param"].startswith("prompt_cache_options")
    assert refused(harness, 400, prompt_cache_retention="1h")["param"] == "prompt_cache_retention"


def test_an_error_after_the_first_event_is_the_last_one(make_scripted: Any) -> None:
    harness = make_scripted("x" * 400, step_s=0.005, request_timeout=0.5)
    events = streamed(harness, max_output_tokens=400)
    assert events[-1]["type"] == "response.failed"
    response = events[-1]["response"]
    assert response["status"] == "failed"
    assert "deadline" in response["error"]["message"]
    error = refused(harness, 503, max_output_tokens=400)
    assert "deadline" in error["message"]


def test_what_has_no_effect_is_told(make_scripted: Any) -> None:
    harness = make_scripted("x")
    fields = {
        "service_tier": "flex", "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low", "summary": "auto"}, "text": {"verbosity": "low"},
        "top_logprobs": 2, "new_field": 1,
    }  # fmt: skip
    reply = harness.post(RESPONSES, body_of(**fields))
    assert reply.status_code == 200
    assert reply.headers["x-quire-ignored-fields"] == (
        "new_field, service_tier, top_logprobs, include, reasoning.summary, text.verbosity"
    )


def test_the_prompt_is_that_of_a_chat(make_scripted: Any) -> None:
    harness = make_scripted("x")
    asked = {"input": "What?", "instructions": "Be short.", "max_output_tokens": 9}
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What?"}]
    chat = harness.post(
        "/v1/chat/completions/render", {"messages": messages, "max_completion_tokens": 9}
    ).json()
    rendered = harness.post(f"{RESPONSES}/render", asked).json()
    for name in ("prompt", "token_ids", "sampling_params"):
        assert rendered[name] == chat[name]
    counted = harness.post(f"{RESPONSES}/input_tokens", asked).json()
    count = len(chat["token_ids"])
    assert counted == {"object": "response.input_tokens", "input_tokens": count}
