"""`/inference/v1/generate`: tokens in, tokens out; the fake core counts up from the prompt."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quire.params import SamplingParams
from quire.server.apis.tokens.schema import TokenSampling

from .conftest import Harness, MakeHarness
from .test_completions import events_of, ids, text_of

PATH = "/inference/v1/generate"
ABORT = "/inference/v1/abort_requests"


def ask(harness: Harness, sampling: dict[str, Any] | None = None, **fields: Any) -> Any:
    body = {"token_ids": ids(harness, "A"), "sampling_params": sampling or {}, **fields}
    return harness.post(PATH, body)


def test_the_fields_are_those_of_sampling_params() -> None:
    public = {name for name in SamplingParams.__struct_fields__ if not name.startswith("_")}
    assert set(TokenSampling.__struct_fields__) == public


def test_tokens_are_continued(harness: Harness) -> None:
    (a,) = ids(harness, "A")
    reply = ask(harness, {"max_tokens": 3}, request_id="mine", model="alias").json()
    assert reply["request_id"] == "generate-tokens-mine"
    assert (reply["model"], reply["output_mode"]) == ("alias", "tokens")
    (choice,) = reply["choices"]
    assert choice["token_ids"] == [a + 1, a + 2, a + 3]
    assert (choice["index"], choice["finish_reason"], choice["stop_reason"]) == (0, "length", None)
    assert choice["logprobs"] is None
    assert "text" not in choice
    assert reply["usage"]["completion_tokens"] == 3
    assert reply["prompt_token_ids"] is None
    assert ask(harness, return_token_ids=True).json()["prompt_token_ids"] == [a]


def test_text_mode_has_text_and_texts_of_tokens(harness: Harness) -> None:
    sampling = {"max_tokens": 3, "logprobs": 1, "stop": ["D"]}
    reply = ask(harness, sampling, output_mode="text").json()
    (choice,) = reply["choices"]
    assert choice["text"] == "BC"
    assert len(choice["token_ids"]) == 3  # with the one of the stop string
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "D")
    content = choice["logprobs"]["content"]
    assert [each["token"] for each in content] == ["B", "C", "D"]
    assert [len(each["top_logprobs"]) for each in content] == [1, 1, 1]


@pytest.mark.parametrize("asked", [0, 1, 2])
def test_logprobs_name_tokens_by_id(harness: Harness, asked: int) -> None:
    (choice,) = ask(harness, {"max_tokens": 2, "logprobs": asked}).json()["choices"]
    content = choice["logprobs"]["content"]
    assert [each["token_id"] for each in content] == choice["token_ids"]
    for each in content:
        assert len(each["top_logprobs"]) == max(1, asked)
        assert each["top_logprobs"][0]["token_id"] == each["token_id"]
        assert (each["logprob"], each["rank"]) == (0.0, 1)


def test_logprobs_of_the_prompt(harness: Harness) -> None:
    body = {"token_ids": ids(harness, "AB"), "sampling_params": {"prompt_logprobs": 0}}
    found = harness.post(PATH, {**body, "sampling_params": {"prompt_logprobs": 0, "max_tokens": 1}})
    nothing, second = found.json()["prompt_logprobs"]
    assert nothing is None
    assert set(second) == {str(body["token_ids"][1])}


def test_without_max_tokens_the_context_is_filled(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fake_core.FakeCore.step_s", 0.0)
    longest = harness.model.config.model.max_model_len
    for sampling in ({}, {"max_tokens": None}):
        (choice,) = ask(harness, {**sampling, "ignore_eos": True}).json()["choices"]
        assert len(choice["token_ids"]) == longest - 1 > 16


def test_n_choices(harness: Harness) -> None:
    reply = ask(harness, {"n": 3, "max_tokens": 2, "temperature": 1.0}).json()
    assert sorted(choice["index"] for choice in reply["choices"]) == [0, 1, 2]
    assert reply["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("mode", ["tokens", "text"])
def test_a_stream_is_the_whole_reply_in_pieces(harness: Harness, mode: str) -> None:
    sampling = {"max_tokens": 4, "n": 2, "logprobs": 1}
    fields = {"output_mode": mode, "return_token_ids": True}
    whole = ask(harness, sampling, **fields).json()
    chunks = events_of(
        ask(harness, sampling, **fields, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])
    assert {chunk["output_mode"] for chunk in chunks} == {mode}
    *chunks, last = chunks
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    parts: dict[int, list[Any]] = {choice["index"]: [] for choice in whole["choices"]}
    for chunk in chunks:
        for one in chunk["choices"]:
            parts[one["index"]].append(one)
    for choice in whole["choices"]:
        found = parts[choice["index"]]
        assert [token for one in found for token in one["token_ids"]] == choice["token_ids"]
        assert found[-1]["finish_reason"] == "length"
        if mode == "text":
            assert "".join(one["text"] for one in found) == choice["text"]
        content = [each for one in found if one["logprobs"] for each in one["logprobs"]["content"]]
        assert content == choice["logprobs"]["content"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_what_is_rendered_can_be_generated(harness: Harness, path: str) -> None:
    asked: dict[str, Any] = {"max_tokens": 3, "seed": 5, "temperature": 0.5, "bad_words": ["zz"],
                             "structured_outputs": {"regex": "[A-Z]+"}}  # fmt: skip
    if path == "/v1/completions":
        asked["prompt"] = "A"
    else:
        asked["messages"] = [{"role": "user", "content": "A"}]
    rendered = harness.post(f"{path}/render", asked).json()
    rendered = rendered[0] if isinstance(rendered, list) else rendered
    reply = harness.post(PATH, rendered)
    assert reply.status_code == 200, reply.text
    assert "x-quire-ignored-fields" not in reply.headers
    tokens = reply.json()["choices"][0]["token_ids"]
    expected = harness.post(path, asked).json()["choices"][0]
    assert text_of(harness, tokens) == (expected.get("text") or expected["message"]["content"])


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"token_ids": []}, "empty"),
        ({"token_ids": [-1]}, "token_ids"),
        ({"token_ids": [10**8]}, "vocabulary"),
        ({"token_ids": "A"}, "token_ids"),
        ({"token_ids": [1] * 100_000}, "maximum context length"),
        ({"sampling_params": None}, "sampling_params"),
        ({"sampling_params": {"min_tokens": 2**31, "max_tokens": None}}, "min_tokens"),
        ({"sampling_params": {"max_tokens": 10**6}}, "max_tokens"),
        ({"sampling_params": {"temperature": -1}}, "temperature"),
        ({"sampling_params": {"n": 10**6}}, "n"),
        ({"sampling_params": {"prompt_logprob_token_ids": [[1]]}}, "prompt_logprob_token_ids"),
        ({"sampling_params": {"watermarking": True}}, "watermarking"),
        ({"sampling_params": {"detokenize": False, "stop": ["x"]}}, "stop"),
        ({"sampling_params": {"detokenize": False}, "output_mode": "text"}, "detokenize"),
        ({"output_mode": "derender"}, "output_mode"),
        ({"features": {"mm_hashes": {}}}, "features"),
        ({"content_parts": [{"type": "image_url"}]}, "content_parts"),
        ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)  # fmt: skip
def test_mistakes_are_named(harness: Harness, fields: dict[str, Any], word: str) -> None:
    reply = harness.post(PATH, {"token_ids": [1, 2], "sampling_params": {}, **fields})
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert word in f"{error['message']} {error['param']}"


def test_a_model_that_is_not_here(harness: Harness) -> None:
    assert ask(harness, model="other").status_code == 404


def test_fields_without_effect_are_told(harness: Harness) -> None:
    sampling = {"max_tokens": 1, "skip_reading_prefix_cache": True, "surprise": 1}
    reply = ask(harness, sampling, reasoning_parser_kwargs={"chat_template_kwargs": {}}, other=2)
    told = reply.headers["x-quire-ignored-fields"].split(", ")
    assert sorted(told) == [
        "other", "reasoning_parser_kwargs", "sampling_params.skip_reading_prefix_cache",
        "sampling_params.surprise",
    ]  # fmt: skip


async def test_an_abort_ends_requests_of_the_same_key_alone(make_harness: MakeHarness) -> None:
    harness = make_harness(keys=("one", "two"))
    body = {"token_ids": [1, 2], "sampling_params": {"ignore_eos": True}, "request_id": "same"}

    async with harness.client() as client:

        def post(path: str, body: Any, key: str) -> Any:
            headers = {"Authorization": f"Bearer {key}"}
            return asyncio.ensure_future(client.post(path, json=body, headers=headers))

        assert (await client.post(ABORT, json={"request_ids": ["x"]})).status_code == 401
        for bad in ({}, {"request_ids": "x"}):
            assert (await post(ABORT, bad, "one")).status_code == 400
        whole, streamed = post(PATH, body, "one"), post(PATH, {**body, "stream": True}, "one")
        other = post(PATH, body, "two")
        while harness.context.num_generating < 3:
            await asyncio.sleep(0.002)
        unknown = await post(ABORT, {"request_ids": ["same", "generate-tokens-sam"]}, "one")
        assert (unknown.status_code, unknown.content) == (200, b"")
        assert harness.context.num_generating == 3
        await post(ABORT, {"request_ids": ["generate-tokens-same"]}, "one")
        assert (await whole).json()["choices"][0]["finish_reason"] == "abort"
        last = events_of(await streamed)[-1]["choices"][0]
        assert last["finish_reason"] == "abort"
        assert (await other).json()["choices"][0]["finish_reason"] == "length"
        assert not harness.context.generating_tokens
