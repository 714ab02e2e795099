"""The `openai` package for Python against a real server."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from .conftest import RunningServer, StartServer

MESSAGES = [{"role": "user", "content": "Tell me something."}]


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "tiny-alias"]
    assert client.models.retrieve("tiny-alias").id == "tiny-alias"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.param == "model"


def test_a_chat_and_its_stream_say_the_same(client: openai.OpenAI) -> None:
    options = {"model": "tiny", "messages": MESSAGES, "max_tokens": 20, "seed": 7, "n": 2}
    whole = client.chat.completions.create(**options)
    texts, reasons, roles, usage = ["", ""], [None, None], set(), None
    for chunk in client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
            if choice.delta.role:
                roles.add((choice.index, choice.delta.role))
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert roles == {(0, "assistant"), (1, "assistant")}
    assert whole.usage is not None
    assert usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens == whole.usage.prompt_tokens
    assert texts[0] != texts[1]


def test_a_prediction_changes_the_usage_alone(client: openai.OpenAI) -> None:
    """A wrong one too; a stream reports the same counts."""
    chat: dict[str, Any] = {
        "model": "tiny", "messages": MESSAGES,
        "max_tokens": 40, "temperature": 0,
    }  # fmt: skip
    plain = client.chat.completions.create(**chat)
    text = plain.choices[0].message.content or ""
    for predicted in (text, "green ideas sleep furiously " * 20):
        chat["prediction"] = {"type": "content", "content": predicted}
        reply = client.chat.completions.create(**chat)
        assert reply.choices[0].message.content == text
        details = reply.usage and reply.usage.completion_tokens_details
        assert details is not None
        counts = (details.accepted_prediction_tokens, details.rejected_prediction_tokens)
        assert (counts[0] or 0) <= 40
        assert counts[0] is not None
        assert counts[1] is not None
        stream = client.chat.completions.create(
            **chat, stream=True, stream_options={"include_usage": True}
        )
        *_, last = stream
        assert last.usage is not None
        assert last.usage.completion_tokens_details is not None
        assert last.usage.completion_tokens_details.accepted_prediction_tokens is not None
    chat["prediction"] = {"type": "content", "content": 3}
    with pytest.raises(openai.BadRequestError, match="prediction"):
        client.chat.completions.create(**chat)


def test_completions_of_several_prompts(client: openai.OpenAI) -> None:
    options = {"model": "tiny", "max_tokens": 6, "temperature": 0}
    both = client.completions.create(prompt=["abc", "xyz"], **options)
    alone = [client.completions.create(prompt=prompt, **options) for prompt in ("abc", "xyz")]
    assert [choice.text for choice in both.choices] == [one.choices[0].text for one in alone]
    assert [choice.index for choice in both.choices] == [0, 1]
    ids = client.completions.create(prompt=[[64, 65, 66], [87, 88, 89]], **options)
    assert [choice.text for choice in ids.choices] == [choice.text for choice in both.choices]


def test_logprobs_have_the_shapes_of_both_endpoints(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=3, logprobs=True, top_logprobs=4, temperature=0
    )
    logprobs = chat.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    for position in logprobs.content:
        assert len(position.top_logprobs) == 4
        assert position.logprob == max(entry.logprob for entry in position.top_logprobs)
    text = client.completions.create(
        model="tiny", prompt="abc", max_tokens=3, logprobs=2, temperature=0
    )
    found = text.choices[0].logprobs
    assert found is not None
    assert found.tokens is not None
    assert found.top_logprobs is not None
    assert found.token_logprobs is not None
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == 3
    for best, chosen in zip(found.top_logprobs, found.token_logprobs, strict=True):
        assert max(best.values()) == chosen


def test_the_request_id_is_echoed(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="tiny", messages=MESSAGES, max_tokens=1, extra_headers={"X-Request-Id": "my-id-1"}
    )
    assert raw.headers["x-request-id"] == "my-id-1"
    assert raw.parse().id == "chatcmpl-my-id-1"


def test_sampling_fields_of_vllm_do_what_they_say(client: openai.OpenAI) -> None:
    def tokens(**fields: Any) -> list[int]:
        reply = client.completions.create(
            model="tiny", prompt="abc", temperature=0, max_tokens=12,
            extra_body={"return_token_ids": True, "ignore_eos": True, **fields},
        )  # fmt: skip
        found: list[int] = reply.choices[0].model_dump()["token_ids"]
        return found

    plain = tokens()
    assert tokens(logit_bias={"66": 100}) == [66] * 12
    assert plain[0] not in tokens(logit_bias={str(plain[0]): -100})
    assert set(tokens(allowed_token_ids=[70, 71])) <= {70, 71}
    assert len(set(tokens(presence_penalty=2, frequency_penalty=2, repetition_penalty=4))) > 6
    assert 65 in tokens(logit_bias={"65": 100})
    assert 65 not in tokens(logit_bias={"65": 100}, bad_words=["b"])
    assert tokens(vllm_xargs={"mine": 1}) == plain
    reply = client.completions.create(
        model="tiny", prompt="abc", max_tokens=12, logprobs=0, temperature=0,
        extra_body={
            "allowed_token_ids": [32], "logprob_token_ids": [33, 34], "ignore_eos": True,
            "repetition_detection": {"max_pattern_size": 1, "min_count": 3},
        },
    )  # fmt: skip
    assert reply.choices[0].finish_reason == "repetition"
    assert reply.choices[0].text == "AAA"
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.top_logprobs is not None
    assert {*logprobs.top_logprobs[0]} == {"A", "B", "C"}
    chat = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=1, logprobs=True,
        extra_body={"allowed_token_ids": [32], "logprob_token_ids": [33, 34]},
    )  # fmt: skip
    content = chat.choices[0].logprobs
    assert content is not None
    assert content.content is not None
    assert {one.token for one in content.content[0].top_logprobs} == {"A", "B", "C"}


def test_mistakes_are_bad_requests_that_name_the_field(client: openai.OpenAI) -> None:
    wrong = {
        "temperature": 3.0, "top_p": 0.0, "max_tokens": 0, "n": 0, "presence_penalty": 3.0,
        "logit_bias": {"999999": 10}, "response_format": {"type": "xml"}, "logprobs": 21,
        "stop": [""], "seed": 2**70,
    }  # fmt: skip
    for name, value in wrong.items():
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model="tiny", prompt="a", extra_body={name: value})
        assert caught.value.param == name, (name, caught.value.body)
    with pytest.raises(openai.BadRequestError, match="max_model_len=2048"):
        client.completions.create(model="tiny", prompt="a", max_tokens=5000)
    with pytest.raises(openai.BadRequestError, match="maximum context length is 2048 tokens"):
        client.completions.create(model="tiny", prompt="a" * 3000)


def test_what_a_client_sends_is_taken_or_told(client: openai.OpenAI) -> None:
    reply = client.chat.completions.with_raw_response.create(
        model="tiny",
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "b"}]},
        ],
        max_tokens=2, store=True, service_tier="auto", verbosity="low", metadata={"a": "b"},
        modalities=["text"], safety_identifier="me", prompt_cache_key="k", user="me",
        extra_body={"enable_thinking": False, "top_k": "5", "nothing": None},
    )  # fmt: skip
    assert reply.headers["x-quire-ignored-fields"] == "enable_thinking, verbosity, store"
    again = reply.parse().choices[0].message
    assert again.tool_calls is None
    messages = [{"role": "user", "content": "a"}, again, {"role": "user", "content": "c"}]
    then = client.chat.completions.with_raw_response.create(
        model="tiny", messages=messages, max_tokens=1
    )  # type: ignore[call-overload]
    assert "x-quire-ignored-fields" not in then.headers


async def test_many_at_once_get_what_each_gets_alone(server: RunningServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x") as client:

        async def ask(index: int) -> str:
            reply = await client.completions.create(
                model="tiny", prompt=f"Question {index}", max_tokens=12, seed=index
            )
            return reply.choices[0].text

        together = await asyncio.gather(*(ask(index) for index in range(24)))
        assert together[:4] == [await ask(index) for index in range(4)]


@pytest.mark.long
def test_a_full_queue_is_retried_until_it_has_room(start_server: StartServer) -> None:
    server = start_server(engine={"max_num_seqs": 1, "max_num_queued_reqs": 1})
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 300, "ignore_eos": True}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:

        def ask(_: int) -> int:
            try:
                reply = client.with_options(max_retries=30).completions.create(
                    model="tiny", prompt="abc", max_tokens=300, extra_body={"ignore_eos": True}
                )
            except openai.APIStatusError as error:  # pragma: no cover
                return error.status_code
            return 200 if reply.usage and reply.usage.completion_tokens == 300 else 0

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(ask, range(6))) == [200] * 6
    rejected = [value for name, value in server.metrics().items() if "admission_rej" in name]
    assert sum(rejected) > 0
    with server.client() as http:
        first = [http.build_request("POST", "/v1/completions", json=body) for _ in range(6)]
        with ThreadPoolExecutor(6) as pool:
            replies = list(pool.map(http.send, first))
    refused = [reply for reply in replies if reply.status_code == 503]
    assert refused
    assert all(int(reply.headers["retry-after"]) >= 1 for reply in refused)
    assert refused[0].json()["error"]["type"] == "Service Unavailable"
