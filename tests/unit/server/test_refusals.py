"""Nothing that a caller asks for is ignored, and nothing it sends is an error of the server's."""

from __future__ import annotations

import gzip
import logging
from typing import Any

import pytest

from .conftest import Harness, MakeHarness

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
TEXT = {"prompt": "A", "max_tokens": 1}
TOOL = {"type": "function", "function": {"name": "f"}}

NOT_YET: list[tuple[dict[str, Any], str, Any]] = [
    *((TEXT, name, value) for name, value in {
        "presence_penalty": 2.5, "frequency_penalty": -2.5, "repetition_penalty": 0,
        "logit_bias": {"x": 2.0}, "best_of": -1, "suffix": "x",
        "allowed_token_ids": [], "bad_words": [""],
        "length_penalty": 2.0, "vllm_xargs": {"a": 2**70}, "logprob_token_ids": [1],
        "thinking_token_budget": -2, "prompt_embeds": "abc", "repetition_detection": {"a": 1},
    }.items()),
    *((CHAT, name, value) for name, value in {
        "tool_choice": "required", "function_call": {"name": "f"}, "audio": {"voice": "x"},
        "modalities": ["audio"], "chat_template": "{{ messages }}", "top_logprobs": 3,
        "tools": [],
        "web_search_options": {}, "mm_processor_kwargs": {"a": 1},
    }.items()),
    *((CHAT, "chat_template_kwargs", {name: []}) for name in (
        "messages", "tools", "self", "chat_template", "tokenize", "add_generation_prompt",
    )),
    (CHAT, "continue_final_message", True),
    (TEXT, "stream_options", {"include_usage": True}),
    (TEXT, "stream_options", {"include_usage": None}),
    *((body, name, value) for body in (TEXT, CHAT) for name, value in {
        "guided_decoding_backend": "llama", "best_of": 0,
        "guided_whitespace_pattern": " ", "logits_processors": ["a.b"], "early_stopping": True,
    }.items()),
    (CHAT, "best_of", 2),
    ({**TEXT, "stream": True}, "best_of", 2),
    ({**TEXT, "temperature": 0}, "best_of", 2),
    *((TEXT, "best_of", value) for value in (129, 2**63, 2**63 - 1, 1.5, "x", [2], -(2**63))),
    *(({**TEXT, "best_of": 2}, "n", value) for value in (0, -1)),
    ({**TEXT, "n": 2}, "best_of", 1),
    ({**TEXT, "stream": True}, "prompt_logprobs", 1),
    (TEXT, "prompt_logprobs", -2),
    (TEXT, "prompt_logprobs", 1000),
]  # fmt: skip

NEUTRAL: list[tuple[dict[str, Any], str, Any]] = [
    *((TEXT, name, value) for name, value in {
        "presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1,
        "logit_bias": {}, "best_of": 1, "suffix": "", "use_beam_search": False,
        "response_format": {"type": "text"}, "user": "me", "bad_words": [], "priority": 0,
        "stop": None, "n": None, "seed": None, "temperature": None, "unknown_field": [1, 2],
        "stream_options": {}, "guided_json": None, "logits_processors": [], "mm_payload": "none",
    }.items()),
    *((CHAT, name, value) for name, value in {
        "tool_choice": "none", "modalities": ["text"], "metadata": {"a": "b"},
        "parallel_tool_calls": False, "reasoning_effort": "low",
        "chat_template_kwargs": {"enable_thinking": False}, "logprobs": False,
        "top_logprobs": 0, "functions": [], "include_reasoning": True, "store": True,
        "service_tier": "flex", "verbosity": "high",
        "prediction": {"type": "content", "content": "a"},
        "safety_identifier": "me", "prompt_cache_key": "k", "session_id": "s",
        "prompt_cache_retention": "24h",
    }.items()),
    ({**TEXT, "n": 2}, "best_of", 2),
    (TEXT, "priority", 3),
]  # fmt: skip


def path_of(body: dict[str, Any]) -> str:
    return "/v1/chat/completions" if "messages" in body else "/v1/completions"


@pytest.mark.parametrize(("body", "name", "value"), NOT_YET)
def test_what_does_not_work_is_refused_by_name(
    harness: Harness, body: dict[str, Any], name: str, value: Any
) -> None:
    reply = harness.post(path_of(body), {**body, name: value})
    error = reply.json()["error"]
    assert reply.status_code == 400, error
    assert error["param"] == name
    assert error["code"] == 400


@pytest.mark.parametrize(("body", "name", "value"), NEUTRAL)
def test_what_asks_for_nothing_is_accepted(
    harness: Harness, body: dict[str, Any], name: str, value: Any
) -> None:
    reply = harness.post(path_of(body), {**body, name: value})
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"max_tokens": 600}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "seven"}, "max_tokens"),
        ({"max_tokens": 5.5}, "max_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 513}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 2, "truncation_side": "middle"}, "truncation_side"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"n": 5}, "n"),
        ({"stop": ["a"] * 4}, "stop"),
        ({"stop": "a" * 60}, "stop"),
        ({"stop_token_ids": [260]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"min_tokens": 2}, "min_tokens"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", [1]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [260]}, "prompt_token_ids"),
        ({"prompt": [1] * 513}, "input_tokens"),
        ({"prompt": ["a"] * 4}, "prompt"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"seed": 2**63}, "seed"),
        ({"request_id": "x" * 200}, "request_id"),
    ],
)
def test_invalid_values_name_their_field(
    make_harness: MakeHarness, change: dict[str, Any], param: str
) -> None:
    harness = make_harness(max_n=4, max_stop_strings=3, max_stop_string_chars=50, max_prompts=3)
    reply = harness.post("/v1/completions", {**TEXT, **change})
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param, reply.text


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"prompt": "\\ud800"}',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"x": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    ],
)  # fmt: skip
def test_rubbish_is_a_bad_request(harness: Harness, data: bytes) -> None:
    headers = {"content-type": "application/json"}
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        reply = harness.request("POST", path, content=data, headers=headers)
        assert reply.status_code == 400, (path, reply.text[:300])
        assert reply.json()["error"]["type"]


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "[1, NaN]", '{"1": NaN}', '"\\ud800"'])
def test_what_is_no_json_is_named_by_its_field(harness: Harness, value: str) -> None:
    headers = {"content-type": "application/json"}
    for path in ("/v1/completions", "/v1/chat/completions"):
        for other in ('"prompt": "a"', '"n": "1", "unknown": 2'):
            data = f'{{{other}, "logit_bias": {value}, "seed": 1}}'.encode()
            error = harness.request("POST", path, content=data, headers=headers).json()["error"]
            assert (error["code"], error["param"]) == (400, "logit_bias"), error


_HALF = "\\ud800"


@pytest.mark.parametrize(
    ("data", "param"),
    [
        (f'{{"prompt": "{_HALF}"}}', "prompt"),
        (f'{{"prompt": "a {_HALF} and more words"}}', "prompt"),
        ('{"prompt": "\\udc00"}', "prompt"),
        ('{"prompt": "\\ud83d\\ud83d"}', "prompt"),
        (f'{{"messages": [{{"role": "user", "content": "{_HALF}"}}], "n": 1}}', "messages"),
        (f'{{"{_HALF}":1}}', None),
        (f'"{_HALF}"', None),
    ],
)
def test_half_of_a_surrogate_pair_is_named(harness: Harness, data: str, param: str | None) -> None:
    """It is not reported as a body that was truncated."""
    headers = {"content-type": "application/json"}
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
        error = harness.request("POST", path, content=data, headers=headers).json()["error"]
        assert error["code"] == 400
        assert error["param"] == param
        assert "must be half of a pair" in error["message"]
        assert "truncated" not in error["message"]


@pytest.mark.parametrize("prompt", [f'["{"a" * 300_000}", "{_HALF}"]', f'"{"a" * 300_000}{_HALF}"'])
def test_half_of_a_surrogate_pair_is_named_in_a_large_body(harness: Harness, prompt: str) -> None:
    headers = {"content-type": "application/json"}
    reply = harness.request(
        "POST", "/v1/completions", content=f'{{"prompt": {prompt}}}', headers=headers
    )
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == (400, "prompt")
    assert "must be half of a pair" in error["message"]


@pytest.mark.parametrize("data", ['{"prompt": "a', '{"prompt": "a\\ud83d\\ude42', '{"prompt": '])
def test_a_body_that_was_cut_is_not_blamed_on_a_pair(harness: Harness, data: str) -> None:
    headers = {"content-type": "application/json"}
    reply = harness.request("POST", "/v1/completions", content=data, headers=headers)
    assert reply.status_code == 400
    assert "half of a pair" not in reply.text


@pytest.mark.parametrize(
    "number", ["1e999", "-1e999", "9" * 5000, "1.5", "{}", '"1.5"', '"9223372036854775808"', '""']
)
def test_numbers_out_of_range_are_bad_requests(harness: Harness, number: str) -> None:
    headers = {"content-type": "application/json"}
    for name in ("seed", "max_tokens", "n"):
        data = f'{{"prompt": "a", "{name}": {number}}}'.encode()
        reply = harness.request("POST", "/v1/completions", content=data, headers=headers)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, name)


def test_odd_text_goes_through(harness: Harness) -> None:
    for prompt in ("a\x00b", "\u202e", "🙂" * 50, "\ufffd", "<|im_end|>x"):
        assert harness.post("/v1/completions", {**TEXT, "prompt": prompt}).status_code == 200


def test_long_texts_are_counted_but_not_run(harness: Harness) -> None:
    text = "a" * 100_000
    assert harness.post("/tokenize", {"prompt": text}).json()["count"] == 100_000
    reply = harness.post("/v1/completions", {"prompt": text})
    assert reply.status_code == 400
    assert "100000 bytes" in reply.json()["error"]["message"]
    assert harness.post("/detokenize", {"tokens": [1] * 513}).status_code == 400


def test_other_media_types_and_models_are_refused(harness: Harness) -> None:
    reply = harness.request("POST", "/tokenize", content=b"x", headers={"content-type": "text/xml"})
    assert reply.status_code == 415
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    sent = {"content": gzip.compress(b'{"prompt": "a"}'), "headers": headers}
    reply = harness.request("POST", "/tokenize", **sent)
    assert (reply.status_code, reply.headers["accept-encoding"]) == (415, "identity")
    assert "switch the compression of requests off" in reply.json()["error"]["message"]
    sent = {"content": b'{"prompt": "a"}', "headers": {**headers, "content-encoding": "identity"}}
    assert harness.request("POST", "/tokenize", **sent).status_code == 200
    for path in ("/v1/completions", "/tokenize", "/v1/completions/render"):
        reply = harness.post(path, {**TEXT, "model": "other"})
        assert reply.status_code == 404
        assert reply.json()["error"]["message"] == (
            "The model `other` does not exist. This server has: `tiny`, `alias`."
        )
    assert harness.request("GET", "/v1/nothing").json()["error"]["code"] == 404
    assert harness.request("PUT", "/tokenize").json()["error"]["code"] == 405


def test_stacks_are_logged_where_that_is_asked_for(
    make_harness: MakeHarness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("quire"), "propagate", True)
    for is_asked in (False, True):
        harness = make_harness(log_error_stack=is_asked)
        with caplog.at_level("INFO", logger="quire"):
            reply = harness.post("/v1/completions", {"prompt": "a", "max_tokens": -1})
        assert reply.status_code == 400
        assert ("Traceback" in caplog.text) is is_asked
