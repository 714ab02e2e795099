"""A large body decodes to what the decoder gives, or is refused by the name of its field."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from quire.errors import RequestError
from quire.server.apis.chat.schema import ChatRequest
from quire.server.apis.completions.schema import CompletionRequest
from quire.server.apis.tokenizer import DetokenizeRequest, TokenizeRequest
from quire.server.bodies import large as large_body
from quire.server.bodies.json_http import BodyDecoder
from quire.server.bodies.large import BodyLimits, decode_large

LIMITS = BodyLimits(max_json_values=1000, max_field_bytes=5000, max_prompts=8, max_model_len=100)
MESSAGE = {"role": "user", "content": 'say "hi", {you}: [now]'}


def decoded(body: dict[str, Any] | bytes, kind: Any) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return decode_large(data, kind, BodyDecoder(kind).decode, LIMITS).body


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"prompt": "text"}, CompletionRequest),
        ({"prompt": ["a, b", "c\\", '"'], "n": 2}, CompletionRequest),
        ({"prompt": [1, 2, 3], "stop": ["x"], "unknown": [[[]]]}, CompletionRequest),
        ({"prompt": [[1, 2], [3], []], "logit_bias": {"1": 2}}, CompletionRequest),
        ({"prompt": [[]]}, CompletionRequest),
        ({"prompt": []}, CompletionRequest),
        ({"tokens": list(range(100)), "model": "m"}, DetokenizeRequest),
        ({"tokens": []}, DetokenizeRequest),
        ({"prompt": [1.0, 2, 3.0], "n": "2", "x": 1}, CompletionRequest),
        ({"tokens": ["1", True, 3.0]}, DetokenizeRequest),
        ({"messages": [MESSAGE] * 20, "tools": []}, ChatRequest),
        ({"prompt": "x" * 9000}, TokenizeRequest),
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_decodes_like_the_decoder(
    body: dict[str, Any], kind: Any, indent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_body, "PIECE_BYTES", 4)  # ids in many pieces
    data = json.dumps(body, indent=indent).encode()
    assert decoded(b"\n " + data + b" ", kind) == BodyDecoder(kind).decode(data).body


TOO_MUCH: list[tuple[dict[str, Any] | bytes, Any, str | None, str]] = [
    ({"prompt": "a", "metadata": [[]] * 2000}, CompletionRequest, None, ""),
    ({"prompt": "a", "stop": "x" * 6000}, CompletionRequest, "stop", "max_field_bytes 5000"),
    ({"prompt": "a", "allowed_token_ids": [1] * 1500}, CompletionRequest, "allowed_token_ids",
     "max_json_values 1000"),
    ({"prompt": "a", "bad_words": ["x"] * 700, "logprob_token_ids": [1] * 400}, CompletionRequest,
     "bad_words", "max_json_values 1000"),
    ({"prompt": [1] * 101}, CompletionRequest, "input_tokens", "context length is 100 tokens"),
    ({"prompt": [[1], [1] * 101]}, CompletionRequest, "input_tokens", "contains 101 input tokens"),
    ({"prompt": ["a"] * 9}, CompletionRequest, "prompt", "max_prompts 8"),
    ({"prompt": [[1]] * 9}, CompletionRequest, "prompt", "max_prompts 8"),
    ({"tokens": [1] * 101}, DetokenizeRequest, "tokens", "max_model_len 100"),
    ({"messages": [MESSAGE], "chat_template_kwargs": {"a": [{}] * 3000}}, ChatRequest,
     "chat_template_kwargs", "max_field_bytes 5000"),
    ({"messages": [{"role": "u", "tool_calls": [{"a": 1}] * 500}]}, ChatRequest, "messages",
     "max_json_values 1000"),
    ({"messages": [MESSAGE], "documents": [{"a": "b"}] * 500}, ChatRequest, "documents",
     "max_json_values 1000"),
    ({f"k{i}": 1 for i in range(2000)}, CompletionRequest, None, "1024 fields"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "kind", "name", "limit"), TOO_MUCH)
def test_what_holds_too_much_is_refused_by_name(
    body: dict[str, Any], kind: Any, name: str | None, limit: str
) -> None:
    if not limit:  # a field that the endpoint does not have is not looked at
        assert decoded(body, kind).prompt == "a"
        return
    with pytest.raises(RequestError, match=limit) as caught:
        decoded(body, kind)
    assert caught.value.parameter == name


@pytest.mark.parametrize(
    "prompt",
    ['["a", [1]]', "[[1], 2]", "[1, [2]]", "[[1] [2]]", "[[1],, [2]]", "[-1]", "[1.5]", "[[1.5]]",
     "[2147483648]", '[1, "a"]', "[[1]x]", "[,1]", "[1,]", "[null]"],
)  # fmt: skip
def test_lists_of_another_kind_are_refused(prompt: str) -> None:
    with pytest.raises((RequestError, msgspec.DecodeError)):
        decoded(f'{{"prompt": {prompt}}}'.encode(), CompletionRequest)


@pytest.mark.parametrize("data", [b"", b"[1]", b"null", b'{"prompt": "a"', b'{"prompt": "a"} x'])
def test_what_is_no_object_is_no_body(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decoded(data, CompletionRequest)


def test_fields_that_no_type_has_are_found() -> None:
    body = {"prompt": "a", "metadata": [[]] * 2000, "nothing": None, "stream_options": {"x": 1}}
    found = decode_large(
        json.dumps(body).encode(),
        CompletionRequest,
        BodyDecoder(CompletionRequest).decode,
        LIMITS,
    )
    assert list(found.unknown) == ["stream_options.x", "metadata"]


class Spy(BodyDecoder[TokenizeRequest]):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__(TokenizeRequest)
        self.given: list[bytes] = []

    def decode(self, data: bytes) -> Any:
        self.given.append(data)
        return super().decode(data)


def test_a_body_of_known_fields_is_not_copied() -> None:
    """A copy of 14 MB holds the GIL for some milliseconds, each time."""
    spy, data = Spy(), json.dumps({"prompt": "x" * 9000, "add_special_tokens": False}).encode()
    assert decode_large(data, spy.kind, spy.decode, LIMITS).body.prompt == "x" * 9000
    assert spy.given[0] is data


def test_the_last_of_two_fields_of_one_name_counts() -> None:
    spy, data = Spy(), b'{"prompt": "a", "unknown": [1, 2], "prompt": "b"}'
    found = decode_large(data, spy.kind, spy.decode, LIMITS)
    assert found.body.prompt == "b"
    assert list(found.unknown) == ["unknown"]
    assert spy.given == [b'{"prompt":"b"}']
