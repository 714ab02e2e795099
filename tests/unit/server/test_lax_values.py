"""Values of a convertible type are taken as pydantic takes them, which vLLM's HTTP API does."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec
import pytest

from quire.server.apis.chat.schema import ChatRequest
from quire.server.apis.completions.schema import CompletionRequest
from quire.server.bodies.json_http import body_decoder
from quire.server.bodies.lax_values import as_bool, as_float, as_int

from .conftest import Harness

SCALARS: list[Any] = [
    None, True, False, 0, 1, 2, -1, 2**63, 0.0, 1.0, -0.0, 5.0, 5.5, 1e30, 1e300, "", " ", "0",
    "1", "5", " 5 ", "\t5\n", "+5", "-5", "--5", "5.0", "5.", "5.00", ".0", "5.5", "1e3", "1E3",
    "1_000", "1__000", "_1", "1_", "007", "0x10", "five", "5 5", "inf", "-Infinity", "nan", "NaN",
    ".5", "-.5", "5e", "5e-3", "1_0.5", "true", "TRUE", "True", "t", "y", "yes", "on", "ON",
    "false", "f", "n", "no", "off", " true", "truee", "null", "none", "\u0665", [], {}, [1],
]  # fmt: skip


@pytest.mark.timeout(60)
def test_long_texts_are_tried_in_linear_time() -> None:
    """A body may have many of them."""
    text = "1" * 4200 + "x"
    assert [as_float(text) for _ in range(2000)] == [text] * 2000


@pytest.mark.parametrize(("kind", "convert"), [(int, as_int), (float, as_float), (bool, as_bool)])
def test_scalars_convert_as_in_pydantic(kind: type, convert: Any) -> None:
    pydantic = pytest.importorskip("pydantic")
    adapter = pydantic.TypeAdapter(kind)
    for value in SCALARS:
        found = convert(value)
        if kind is float and type(found) is int:
            found = float(found)  # the strict decoder takes an integer as a float
        try:
            wanted = adapter.validate_python(value)
        except pydantic.ValidationError:
            assert type(found) is not kind, (value, found)
            continue
        assert type(found) is kind, (value, found)
        assert found == wanted or found != found, (value, found, wanted)


def decode(kind: Any, **fields: Any) -> Any:
    return body_decoder(kind).decode(json.dumps(fields).encode())


def test_fields_of_every_depth_convert() -> None:
    body = decode(
        CompletionRequest, prompt="a", max_tokens="5", n=2.0, temperature="0.5", stream="true",
        echo=1, stop_token_ids=["1", 2.0], logit_bias={"1": "2"}, ignore_eos=0, seed="7",
        stream_options={"include_usage": "yes"},
    ).body  # fmt: skip
    assert (body.max_tokens, body.n, body.temperature, body.stream) == (5, 2, 0.5, True)
    assert (body.echo, body.stop_token_ids, body.logit_bias) == (True, [1, 2], {"1": 2.0})
    assert (body.ignore_eos, body.seed, body.stream_options.include_usage) == (False, 7, True)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"model": 5}, "model"),
        ({"user": True}, "user"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a", 5]}, "stop[1]"),
        ({"request_id": 1.5}, "request_id"),
        ({"seed": "null"}, "seed"),
        ({"n": "5.5"}, "n"),
        ({"stream": 2}, "stream"),
        ({"stream": "maybe"}, "stream"),
        ({"temperature": "warm"}, "temperature"),
        ({"stop_token_ids": ["x"]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"logit_bias": {"1": "x"}}, "logit_bias[...]"),
        ({"stream_options": "yes"}, "stream_options"),
        ({"prompt": {}}, "prompt"),
    ],
)
def test_what_does_not_convert_is_refused_by_name(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="Expected") as caught:
        decode(CompletionRequest, **{"prompt": "a", **fields})
    assert str(caught.value).endswith(f"`$.{path}`")


def test_a_missing_field_is_named_beside_values_that_convert() -> None:
    with pytest.raises(msgspec.ValidationError, match="missing required field `messages`"):
        decode(ChatRequest, n="2", nonsense=1)


def test_prompts_keep_their_kinds() -> None:
    assert decode(CompletionRequest, prompt=["1", "2"], n="1").body.prompt == ["1", "2"]
    assert decode(CompletionRequest, prompt=[1.0, 2]).body.prompt == [1, 2]
    assert decode(CompletionRequest, prompt=[["1"], [2.0]]).body.prompt == [[1], [2]]


def test_the_context_of_free_fields_stays_as_it_is() -> None:
    kwargs = {"a": "5", "b": {"c": "true"}, "n": 1.0}
    messages = [{"role": "user", "content": "5"}]
    body = decode(ChatRequest, messages=messages, chat_template_kwargs=kwargs, n="1").body
    assert body.chat_template_kwargs == kwargs
    assert body.messages[0].content == "5"


def test_a_number_that_is_too_large_is_named() -> None:
    for number in (b"9" * 5000, b"1e999"):
        data = b'{"unknown": 1, "prompt": "a", "seed": %b}' % number
        with pytest.raises(msgspec.ValidationError, match=r"at `\$\.seed`"):
            body_decoder(CompletionRequest).decode(data)


def test_over_http(harness: Harness) -> None:
    reply = harness.post(
        "/v1/completions", {"prompt": "A", "max_tokens": "3", "n": 2.0, "echo": "true"}
    ).json()
    assert [choice["text"] for choice in reply["choices"]] == ["ABCD", "ABCD"]
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1.0, "logprobs": 1}
    reply = harness.post("/v1/chat/completions", {**chat, "top_logprobs": "2"}).json()
    assert len(reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 2


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    kind: Literal["x", "y"] | None = None
    kinds: list[Literal["a"] | int] | None = None


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    format: Literal["json", "text"] | dict[str, Any] = "json"
    inner: Inner | None = None
    by_name: dict[str, Inner] | None = None


@pytest.mark.parametrize(
    ("body", "choices", "path"),
    [
        ({"format": "srt"}, "'json', 'text'", "$.format"),
        ({"inner": {"kind": "z"}}, "'x', 'y'", "$.inner.kind"),
        ({"inner": {"kinds": [1, "b"]}}, "'a'", "$.inner.kinds[1]"),
        ({"by_name": {"u.v`": {"kind": "z - at `$.format`"}}}, "'x', 'y'", "$.by_name[...].kind"),
    ],
)
def test_errors_name_what_may_be_chosen(body: Any, choices: str, path: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        body_decoder(Outer).decode(json.dumps(body).encode())
    assert str(caught.value).endswith(f"; it must be one of {choices} - at `{path}`")
