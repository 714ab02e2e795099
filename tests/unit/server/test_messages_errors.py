"""Errors of the Messages API, its keys, and fields that nobody knows."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from quire.parsers.format import ReplyFormat
from quire.parsers.tool_formats.hermes import HermesCalls

from .conftest import Harness, MakeHarness, MakeScripted
from .messages_client import BODY, COUNT, PATH, TOOLS

KEY = "secret-key"
PATHS = [PATH, COUNT]
COUNTED = {name: BODY[name] for name in ("model", "messages")}


def error_of(reply: httpx.Response, status: int, kind: str) -> str:
    """The message of an error, which has this status and type."""
    assert reply.status_code == status, reply.text
    body = reply.json()
    assert body.keys() == {"type", "error"}
    assert body["type"] == "error"
    assert body["error"].keys() == {"type", "message"}
    assert body["error"]["type"] == kind
    message: str = body["error"]["message"]
    return message


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "Invalid request body"),
        (b"{", "Invalid request body"),
        (b"[]", "Invalid request body"),
        (b'{"model": "tiny", "messages": NaN}', "messages"),
        (b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}', "model"),
        (b'{"model": "tiny", "max_tokens": 1}', "messages"),
        (b'{"model": "tiny", "max_tokens": 1, "messages": []}', "messages"),
        (b'{"model": "tiny", "max_tokens": 1, "messages": [{"role": "tool"}]}', "role"),
        (b'{"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": 5}]}',
         "content"),
    ],
)  # fmt: skip
def test_a_body_that_is_wrong(harness: Harness, path: str, body: bytes, words: str) -> None:
    reply = harness.request(
        "POST", path, content=body, headers={"content-type": "application/json"}
    )
    assert words in error_of(reply, 400, "invalid_request_error")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 7}, "top_p"),
        ({"top_k": -5}, "top_k"),
        ({"stop_sequences": ["x"] * 1000}, "stop_sequences: 1000 strings"),
        ({"stop_sequences": ["x"] * 1000}, "(max_stop_strings 16)"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "sometimes"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "h"}}, "tool_choice"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1]"),
        ({"output_config": {"effort": "huge"}}, "effort"),
        ({"output_config": {"format": {"schema": {"type": "nothing"}}}}, "output_config.format"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"kv_transfer_params": {"do_remote_decode": 1}}, "kv_transfer_params"),
    ],
)
def test_a_field_that_is_wrong_is_named(harness: Harness, fields: Any, words: str) -> None:
    for stream in (False, True):
        reply = harness.post(PATH, {**BODY, **fields, "stream": stream})
        message = error_of(reply, 400, "invalid_request_error")
        assert words in message
        assert "response_format" not in message
        assert "function" not in message


def test_a_prompt_that_is_too_long_says_so_in_the_words_that_clients_look_for(
    harness: Harness,
) -> None:
    turns = [{"role": "user", "content": "x" * 600}]
    reply = harness.post(PATH, {**BODY, "messages": turns})
    assert error_of(reply, 400, "invalid_request_error").startswith("prompt is too long")


@pytest.mark.parametrize("path", PATHS)
def test_a_model_that_is_not_served(harness: Harness, path: str) -> None:
    reply = harness.post(path, {**COUNTED, "max_tokens": 5, "model": "claude-x"})
    assert "claude-x" in error_of(reply, 404, "not_found_error")


@pytest.mark.parametrize("path", PATHS)
def test_other_statuses(make_harness: MakeHarness, path: str) -> None:
    harness = make_harness(max_body_bytes=500)
    error_of(harness.post(path, {**COUNTED, "system": "x" * 600}), 413, "request_too_large")
    error_of(harness.request("GET", path), 405, "invalid_request_error")
    as_text = {"content": b"{}", "headers": {"content-type": "text/plain"}}
    error_of(harness.request("POST", path, **as_text), 415, "invalid_request_error")
    foreign = {"Origin": "http://evil.example"}
    error_of(harness.post(path, COUNTED, headers=foreign), 403, "permission_error")
    bad_id = {"X-Request-Id": "x y"}
    error_of(harness.post(path, COUNTED, headers=bad_id), 400, "invalid_request_error")
    reply = make_harness(is_loaded=False).post(path, {**COUNTED, "max_tokens": 1})
    error_of(reply, 529, "overloaded_error")
    assert reply.headers["retry-after"] == "1"


def test_other_routes_keep_their_errors(harness: Harness) -> None:
    for path in ("/v1/chat/completions", "/v1/messages/render", "/v1/messages/"):
        assert harness.post(path, {"model": "x"}).json()["error"]["code"] in (400, 404)


@pytest.mark.parametrize("path", [*PATHS, "/v1/chat/completions"])
def test_keys(make_harness: MakeHarness, path: str) -> None:
    harness = make_harness(keys=(KEY,))
    body = {**BODY, "max_tokens": 1}

    def status(*headers: tuple[str, str]) -> int:
        return harness.post(path, body, headers=[*headers]).status_code

    own, bearer = ("x-api-key", KEY), ("Authorization", f"Bearer {KEY}")
    assert status(own) == status(bearer) == 200
    assert status(own, ("Authorization", "Bearer other")) == 200
    assert status(bearer, ("x-api-key", "other")) == 200
    for wrong in (
        [], [("x-api-key", "other")], [("x-api-key", "")], [("x-api-key", f"Bearer {KEY}")],
        [own, own], [own, ("x-api-key", "other")], [("authorization", KEY)],
    ):  # fmt: skip
        assert status(*wrong) == 401, wrong


@pytest.mark.parametrize("path", PATHS)
def test_a_missing_key(make_harness: MakeHarness, path: str) -> None:
    message = error_of(make_harness(keys=(KEY,)).post(path, BODY), 401, "authentication_error")
    assert "x-api-key" in message


def test_what_the_vendor_adds_is_accepted(make_scripted: MakeScripted) -> None:
    """Marks for the cache mean nothing here and are silent; fields that nobody knows are named."""
    harness = make_scripted("x")
    mark = {"type": "ephemeral"}
    content = [{"type": "text", "text": "x", "cache_control": mark}]
    body = {
        **BODY, "max_tokens": 1, "messages": [{"role": "user", "content": content}],
        "system": [{"type": "text", "text": "s", "cache_control": mark}],
        "tools": [{**TOOLS[0], "cache_control": mark, "eager_input_streaming": True}],
        "cache_control": mark, "metadata": {"user_id": "u"}, "service_tier": "standard_only",
    }  # fmt: skip
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "a-2026-01-01"}
    reply = harness.post(f"{PATH}?beta=true", body, headers=headers)
    assert reply.status_code == 200, reply.text
    assert "X-Quire-Ignored-Fields" not in reply.headers
    assert reply.headers["request-id"] == reply.headers["x-request-id"]
    thinking = {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}
    reply = harness.post(PATH, {**body, "max_tokens": 2000, "thinking": thinking})
    assert reply.headers["X-Quire-Ignored-Fields"] == "thinking.display"
    harness.model.found_format = ReplyFormat(None, HermesCalls())  # that does not reason
    reply = harness.post(PATH, {**body, "max_tokens": 2000, "thinking": thinking})
    assert reply.headers["X-Quire-Ignored-Fields"] == "thinking.budget_tokens, thinking.display"
    reply = harness.post(PATH, {**body, "context_management": {"edits": []}, "speed": "fast"})
    assert reply.status_code == 200
    assert reply.headers["X-Quire-Ignored-Fields"] == "context_management, speed"
