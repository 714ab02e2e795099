"""Fields that have no effect are named in a header of the reply, and in the log once."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request

from quire.server.http import middleware
from quire.structured import limits

from .conftest import Harness, MakeHarness, MakeScripted

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
TEXT = {"prompt": "A", "max_tokens": 1}
HEADER = "x-quire-ignored-fields"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (TEXT, None),
        ({**TEXT, "user": "me", "nothing": None}, None),
        ({**TEXT, "thinking": {"type": "disabled"}, "enable_thinking": False},
         "thinking, enable_thinking"),
        ({**TEXT, "stream": True, "stream_options": {"include_usage": True, "x": 1}},
         "stream_options.x"),
        ({**TEXT, "response_format": {"type": "text", "strict": True}}, "response_format.strict"),
        ({**TEXT, "priority": 2, "session_id": "s"}, "session_id, priority"),
        ({**CHAT, "watermarking": False}, None),
        ({**TEXT, "guided_regex": "a", "guided_decoding_backend": "outlines"},
         "guided_decoding_backend"),
        ({**CHAT, "store": True, "service_tier": "flex", "verbosity": "low"},
         "service_tier, verbosity, store"),
        ({**CHAT, "store": False, "service_tier": "auto", "metadata": {"a": "b"}}, None),
        ({**CHAT, "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}},
            ]},
            {"role": "assistant", "content": "c", "refusal": None, "annotations": []},
        ]}, "messages.content.cache_control, messages.annotations"),
        ({**CHAT, "tools": [{"type": "function", "function": {"name": "f", "x": 1}}],
          "tool_choice": "none"}, "tools.function.x"),
    ],
)  # fmt: skip
def test_ignored_fields_are_named(harness: Harness, body: dict[str, Any], told: str | None) -> None:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    reply = harness.post(path, body)
    assert reply.status_code == 200, reply.text
    assert reply.headers.get(HEADER) == told
    plain = {key: value for key, value in body.items() if key != "stream_options"}
    assert harness.post(f"{path}/render", plain).status_code == 200


def test_other_endpoints_and_errors_name_them_too(harness: Harness) -> None:
    assert harness.post("/tokenize", {"prompt": "a", "x": 1}).headers[HEADER] == "x"
    refused = harness.post("/v1/completions", {**TEXT, "top_p": 7, "x": 1})
    assert refused.status_code == 400
    assert refused.headers[HEADER] == "x"
    large = {"prompt": "a " * 80_000, "x": 1}  # decoded in another way
    assert harness.post("/tokenize", large).headers[HEADER] == "x"


def test_a_priority_has_its_effect_where_the_policy_has(make_harness: MakeHarness) -> None:
    harness = make_harness(scheduler={"policy": "priority"})
    assert HEADER not in harness.post("/v1/completions", {**TEXT, "priority": 2}).headers


def test_names_cannot_break_out_of_the_header(harness: Harness) -> None:
    names = ["a\r\nSet-Cookie: x=1", "b, c", "é", "", "x" * 1000]
    reply = harness.post("/v1/completions", {**TEXT, **dict.fromkeys(names, 1)})
    assert reply.status_code == 200
    assert "set-cookie" not in reply.headers
    told = reply.headers[HEADER].split(", ")
    assert told[:3] == ["a??Set-Cookie??x?1", "b??c", "?"]
    assert told[-1] == "x" * 64


def test_many_names_are_counted(harness: Harness) -> None:
    many = {f"field{index}": index for index in range(500)}
    told = harness.post("/v1/completions", {**TEXT, **many}).headers[HEADER]
    assert told.startswith("field0, field1, ")
    assert told.endswith(", and-48-more")
    assert len(told) < 512


def test_pieces_of_tokens_are_named(harness: Harness) -> None:
    for fields, told in {(): None, ("with_pieces",): "with_pieces"}.items():
        reply = harness.post("/tokenize", {"content": "a", **dict.fromkeys(fields, True)})
        assert reply.headers.get(HEADER) == told


def test_each_name_is_logged_once_and_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(
        middleware.fields_logger, "warning", lambda _, name, *__: logged.append(name)
    )
    fields = middleware.IgnoredFields()
    for index in range(500):
        scope = {"type": "http", "state": {}}
        fields.tell(Request(scope), ["same\n", f"field{index}"])
        assert middleware.ignored_header(scope, 200)[0][1] == b"same?, field%d" % index
    refused = {"type": "http", "state": {}}
    fields = middleware.IgnoredFields()
    fields.tell(Request(refused), ["image_url"])
    assert middleware.ignored_header(refused, 400)[0][1] == b"image_url"
    assert "image_url" not in logged
    assert logged[:3] == ["same?", "field0", "field1"]
    assert len(logged) == len(set(logged)) == 256


LOOK_AHEAD = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?!b).*$"}}}


@pytest.mark.parametrize("is_stream", [False, True])
def test_schemas_of_tools_that_do_not_hold_are_named(
    make_scripted: MakeScripted, is_stream: bool
) -> None:
    """Other tools are held to theirs. Calls that have to come, and strict tools, are refused."""
    harness = make_scripted('<tool_call>{"name": "f", "arguments": {"a": "b"}}</tool_call>')
    good = {"type": "object", "properties": {"a": {"type": "string"}}}
    names = {"g": good, "f": LOOK_AHEAD}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in names.items()
    ]
    body = {**CHAT, "max_tokens": 100, "tools": tools, "stream": is_stream}
    reply = harness.post("/v1/chat/completions", body)
    assert reply.status_code == 200, reply.text
    assert reply.headers[HEADER] == "tools[1].function.parameters"
    tools[1]["function"]["strict"] = True
    for changed in (body, {**body, "tools": tools[:1], "tool_choice": "required"}):
        reply = harness.post("/v1/chat/completions", changed)
        assert (reply.status_code == 200) == (len(changed["tools"]) == 1)
        assert HEADER not in reply.headers
    own = [{"name": name, "input_schema": schema} for name, schema in names.items()]
    reply = harness.post("/v1/messages", {**CHAT, "model": "tiny", "max_tokens": 9, "tools": own})
    assert reply.headers.get(HEADER) == "tools[1].input_schema", reply.text


def test_tools_that_are_too_much_together_come_without_schemas(
    make_scripted: MakeScripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each alone could be held."""
    monkeypatch.setitem(limits.MAX_BYTES, "structural_tag", 1200)
    schema = {"type": "object", "properties": {f"p{i}": {"enum": ["a", "b"]} for i in range(4)}}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema}} for name in "fg"
    ]
    body = {**CHAT, "tools": tools}
    reply = make_scripted("hello").post("/v1/chat/completions", body)
    assert reply.status_code == 200, reply.text
    assert reply.headers[HEADER] == "tools[0].function.parameters, tools[1].function.parameters"
    monkeypatch.setitem(limits.MAX_BYTES, "structural_tag", 300)
    reply = make_scripted("hello").post("/v1/chat/completions", {**body, "tool_choice": "required"})
    assert reply.status_code == 400
    assert "offer fewer of them" in reply.text


def test_tools_that_are_left_out_are_named(harness: Harness) -> None:
    function = {"name": "f", "parameters": {"type": "object"}}
    tools = [{"type": "web_search", "external_web_access": True}, {"type": "function", **function}]
    asked = {"input": "a", "tools": tools, "tool_choice": "none", "max_output_tokens": 1}
    reply = harness.post("/v1/responses", asked)
    assert reply.status_code == 200, reply.text
    assert reply.headers[HEADER] == "tools.external_web_access, tools.web_search"
    assert [tool["type"] for tool in reply.json()["tools"]] == ["function"]
    search = {"type": "web_search_20250305", "name": "web_search"}
    body = {"model": "tiny", "messages": CHAT["messages"], "tools": [search], "max_tokens": 1}
    reply = harness.post("/v1/messages", body)
    assert reply.status_code == 200, reply.text
    assert reply.headers[HEADER] == "tools.web_search"
