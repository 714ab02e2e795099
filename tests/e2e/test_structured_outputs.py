"""Replies that follow a schema, from a real server, and offline: with a random model, so that the
grammar alone makes them what they are."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest

from quire import LLM, AsyncEngineArgs, AsyncLLMEngine, SamplingParams
from quire.errors import RequestError
from quire.structured.params import GuidedDecodingParams, StructuredOutputsParams
from quire.structured.trial import GrammarTrial

MESSAGES: list[Any] = [{"role": "user", "content": "Tell me something."}]
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "dog"]},
        "ages": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99},
                 "minItems": 2, "maxItems": 2},
    },
    "required": ["kind", "ages"],
    "additionalProperties": False,
}  # fmt: skip


class Pet(pydantic.BaseModel):
    """What `parse` returns."""

    kind: str = pydantic.Field(max_length=5)
    is_old: bool


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    llm = LLM(str(tiny_model), max_model_len=512, disable_log_stats=True)
    yield llm
    llm.close()


def _params(**fields: Any) -> SamplingParams:
    spec = StructuredOutputsParams(**fields)
    return SamplingParams(max_tokens=200, seed=3, structured_outputs=spec)


def test_the_openai_client_parses_a_model(client: openai.OpenAI) -> None:
    reply = client.chat.completions.parse(
        model="tiny", messages=MESSAGES, response_format=Pet, max_tokens=200, seed=1
    )
    assert reply.choices[0].finish_reason == "stop"
    pet = reply.choices[0].message.parsed
    assert pet is not None
    assert isinstance(pet.is_old, bool)


def test_the_openai_client_streams_a_model(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="tiny", messages=MESSAGES, response_format=Pet, max_tokens=200, seed=2
    ) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Pet)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"choice": ["positive", "negative"]}}, "positive|negative"),
        ({"structured_outputs": {"regex": "[A-Z]{3}-[0-9]{2}"}}, "[A-Z]{3}-[0-9]{2}"),
        ({"structured_outputs": {"grammar": 'root ::= "a" [0-9] "b"'}}, "a[0-9]b"),
        ({"guided_choice": ["x", "y"]}, "[xy]"),
        ({"guided_regex": "(ab){2}"}, "abab"),
    ],
)
def test_texts_match(client: openai.OpenAI, fields: dict[str, Any], pattern: str) -> None:
    for n, seed in ((1, 1), (3, 5)):
        options: dict[str, Any] = {"max_tokens": 50, "n": n, "seed": seed, "extra_body": fields}
        text = client.completions.create(model="tiny", prompt="a", **options)
        chat = client.chat.completions.create(model="tiny", messages=MESSAGES, **options)
        found = [choice.text for choice in text.choices]
        found += [str(choice.message.content) for choice in chat.choices]
        assert len(found) == 2 * n
        for each in found:
            assert re.fullmatch(pattern, each), each


def test_fields_that_leave_no_token_in_the_middle_are_an_error_of_the_caller(
    client: openai.OpenAI,
) -> None:
    body = {"structured_outputs": {"choice": ["no", "nothing"]}, "bad_words": ["o"]}
    asked: dict[str, Any] = {"model": "tiny", "prompt": "x", "max_tokens": 50, "extra_body": body}
    with pytest.raises(openai.BadRequestError, match=r"no token can be sampled.*bad_words"):
        client.completions.create(**asked)
    with pytest.raises(openai.APIError, match="no token can be sampled") as raised:
        list(client.completions.create(**asked, stream=True))
    assert str(raised.value.code) == "400"  # a string since openai 3
    assert raised.value.param == "structured_outputs"


ENDLESS = {
    "structured_outputs": {"structured_outputs": {"grammar": 'start: "a"{1000000000}'}},
    "guided_grammar": {"guided_grammar": 'start: "a"{1000000000}'},
    "response_format": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "x",
                "schema": {
                    "allOf": [
                        {"anyOf": [
                            {"type": "object", "properties": {f"{side}{i}": {"type": "integer"}}}
                            for side in "ab"
                        ]}
                        for i in range(8)
                    ]
                },
            },
        }
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
def test_a_grammar_that_takes_too_much_names_the_field_that_has_it(
    client: openai.OpenAI, name: str
) -> None:
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 50, "extra_body": ENDLESS[name]}
    with pytest.raises(openai.BadRequestError, match="takes too much") as raised:
        client.completions.create(prompt="x", **asked)
    assert raised.value.param == name
    with pytest.raises(openai.APIError, match="takes too much") as streamed:
        list(client.chat.completions.create(messages=MESSAGES, **asked, stream=True))
    assert (str(streamed.value.code), streamed.value.param) == ("400", name)


@pytest.mark.parametrize("as_format", [True, False])
def test_a_schema_in_completions(client: openai.OpenAI, as_format: bool) -> None:
    schema = {"name": "pet", "schema": SCHEMA, "strict": True}
    asked = {"response_format": {"type": "json_schema", "json_schema": schema}}
    fields = asked if as_format else {"structured_outputs": {"json": SCHEMA}}
    reply = client.completions.create(
        model="tiny", prompt="a", max_tokens=300, seed=4, extra_body=fields
    )
    value = json.loads(reply.choices[0].text)
    assert value["kind"] in ("cat", "dog")
    assert len(value["ages"]) == 2


def test_the_same_text_alone_and_with_others(llm: LLM) -> None:
    specs = [{"regex": "[a-z]{20}"}, {"choice": ["alpha", "beta", "gamma"]}, {"json": SCHEMA}]
    together = llm.generate(["a"] * 3, [_params(**spec) for spec in specs], use_tqdm=False)
    for spec, output in zip(specs, together, strict=True):
        alone = llm.generate("a", _params(**spec), use_tqdm=False)[0]
        assert alone.outputs[0].token_ids == output.outputs[0].token_ids


def test_older_names_offline(llm: LLM) -> None:
    guided = GuidedDecodingParams(choice=["yes", "no"])
    params = SamplingParams(guided_decoding=guided, max_tokens=9)  # type: ignore[call-arg]
    assert params.structured_outputs == StructuredOutputsParams(choice=["yes", "no"])
    assert llm.generate("a", params, use_tqdm=False)[0].outputs[0].text in ("yes", "no")
    with pytest.raises(TypeError, match="give only structured_outputs"):
        SamplingParams(guided_decoding=guided, structured_outputs=guided)  # type: ignore[call-arg]
    with pytest.raises(RequestError, match="Unimplemented keys"):
        llm.generate("a", _params(json={"not": {}}), use_tqdm=False)


async def test_the_async_engine_tries_a_grammar_beside_its_event_loop(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    real = GrammarTrial.checked

    def checked(self: GrammarTrial, spec: StructuredOutputsParams) -> StructuredOutputsParams:
        threads.append(threading.current_thread())
        return real(self, spec)

    monkeypatch.setattr(GrammarTrial, "checked", checked)

    async def text(engine: AsyncLLMEngine, **fields: Any) -> str:
        params = _params(**fields)
        return [out async for out in engine.generate("a", params, "1")][-1].outputs[0].text

    args = AsyncEngineArgs(str(tiny_model), max_model_len=512, disable_log_stats=True)
    engine = AsyncLLMEngine.from_engine_args(args)
    assert await text(engine, choice=["red", "blue"]) in ("red", "blue")
    with pytest.raises(RequestError, match="unclosed group"):
        await text(engine, regex="(")
    engine.shutdown()
    assert len(threads) == 2
    assert threading.main_thread() not in threads


def test_settings_of_the_engine(tiny_model: Path) -> None:
    config = {"disable_any_whitespace": True, "disable_additional_properties": True}
    llm = LLM(
        str(tiny_model),
        max_model_len=512,
        disable_log_stats=True,
        structured_outputs_config=config,
    )
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    outputs = llm.generate(["a"] * 4, _params(json=schema), use_tqdm=False)
    assert {output.outputs[0].text for output in outputs} <= {'{"a":true}', '{"a":false}'}
    llm.close()
