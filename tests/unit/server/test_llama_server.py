"""llama-server's own routes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.errors import RequestError
from quire.server.apis.llama_server.routes import read_llama
from quire.server.apis.llama_server.schema import LlamaCompletionRequest
from quire.server.requests.texts import TextPrompts

from .conftest import Harness


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def test_a_completion_and_its_stream_say_the_same(harness: Harness) -> None:
    body = {"prompt": "ab", "n_predict": 7, "temperature": 0, "return_tokens": True}
    whole = harness.post("/completion", body).json()
    assert (whole["stop"], whole["stop_type"], whole["tokens_predicted"]) == (True, "limit", 7)
    assert whole["tokens_evaluated"] == len(harness.model.tokenizer().encode("ab"))
    assert whole["timings"]["predicted_n"] == 7
    assert len(whole["tokens"]) == 7
    events = events_of(harness.post("/completion", {**body, "stream": True}).text)
    assert "".join(event["content"] for event in events) == whole["content"]
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    assert [token for event in events for token in event["tokens"]] == whole["tokens"]
    assert events[-1]["tokens_predicted"] == 7


def test_a_stop_word_is_named(harness: Harness) -> None:
    text = harness.post("/completion", {"prompt": "ab", "n_predict": 9}).json()["content"]
    stopped = harness.post("/completion", {"prompt": "ab", "n_predict": 9, "stop": [text[2:4]]})
    reply = stopped.json()
    assert (reply["stop_type"], reply["stopping_word"]) == ("word", text[2:4])
    assert text.startswith(reply["content"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_predict": 0}, "n_predict must be a positive number"),
        ({"mirostat": 2}, "mirostat must be 0"),
        ({"n_probs": 3}, "/v1/completions returns log-probabilities"),
        ({"grammar": "root ::= x", "json_schema": {}}, "either grammar or json_schema"),
    ],
)
def test_what_is_not_here_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read_llama(LlamaCompletionRequest(prompt="x", **fields), TextPrompts("x"))


def test_fields_are_read_into_options() -> None:
    asked = LlamaCompletionRequest(
        prompt=[1, 2], n_predict=-1, seed=-1, top_k=0, repeat_penalty=1.2,
        logit_bias=[(5, -1.5)], json_schema={"type": "object"}, stop=["x"],
    )  # fmt: skip
    made = read_llama(asked, TextPrompts([1, 2]))
    assert made.sampling == {
        "top_k": -1, "repetition_penalty": 1.2, "logit_bias": {"5": -1.5}, "stop": ["x"],
        "ignore_eos": False,
    }  # fmt: skip
    assert (made.max_tokens, made.constraint) == (None, {"json": {"type": "object"}})


def test_without_n_predict_the_context_ends_a_completion(harness: Harness) -> None:
    body = {"prompt": "ab", "ignore_eos": True, "temperature": 0}
    for fields in ({}, {"n_predict": -1}, {"n_predict": None}):
        reply = harness.post("/completion", {**body, **fields}).json()
        assert reply["stop_type"] == "limit"
        assert reply["tokens_evaluated"] + reply["tokens_predicted"] == 512


def test_the_state_of_the_server(harness: Harness) -> None:
    props = harness.request("GET", "/props").json()
    assert props["chat_template"] == harness.model.tokenizer().config["chat_template"]
    assert props["modalities"] == {"vision": False, "audio": False}
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert (props["total_slots"], props["is_sleeping"]) == (4, False)
    assert "/" not in props["model_path"]
    slots = harness.request("GET", "/slots").json()
    assert [slot["id"] for slot in slots] == [0, 1, 2, 3]
    assert not any(slot["is_processing"] for slot in slots)
    assert harness.request("GET", "/lora-adapters").json() == []
    for body in (b'[{"id": 0, "scale": 0.5}]', b"9B(\xff"):
        json = {"Content-Type": "application/json"}
        refused = harness.request("POST", "/lora-adapters", content=body, headers=json)
        assert refused.status_code == 400
        assert "by its name as `model`" in refused.json()["error"]["message"]
    assert harness.request("GET", "/props?model=nobody").status_code == 404


def test_a_template_is_applied(harness: Harness) -> None:
    messages = [{"role": "user", "content": "hi"}]
    prompt = harness.post("/apply-template", {"messages": messages}).json()["prompt"]
    rendered = harness.post("/v1/chat/completions/render", {"messages": messages}).json()
    assert prompt == rendered["prompt"]
    assert harness.post("/apply-template", {"messages": []}).status_code == 400


def test_texts_become_tokens_and_back_by_both_names(harness: Harness) -> None:
    tokens = harness.post("/tokenize", {"content": "ab"}).json()["tokens"]
    same = {"prompt": "ab", "add_special_tokens": False}
    assert tokens == harness.post("/tokenize", same).json()["tokens"]
    reply = harness.post("/detokenize", {"tokens": tokens}).json()
    assert reply["content"] == reply["prompt"] == "ab"
