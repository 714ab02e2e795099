"""The requests that Open WebUI 0.12.4 sends, as they were recorded between it and `quire serve`,
and what it reads of the replies. The texts of its prompts are shortened."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from quire.server.apis.embeddings import EmbeddingRequest
from quire.server.apis.ollama.routes import OllamaEmbedRequest
from quire.server.bodies.json_http import body_decoder

from .conftest import Harness, MakeScripted

USER = [{"role": "user", "content": "What is the weather in Oslo?"}]
TASK = [{"role": "user", "content": '### Task:\nGenerate 1-3 broad tags ... { "tags": [] }'}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather", "description": "The weather in a city",
        "parameters": {
            "properties": {"city": {"type": "string"}}, "required": ["city"], "type": "object",
        },
    },
}  # fmt: skip
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
OPTIONS = {
    "seed": 1, "stop": ["zzz"], "temperature": 0.5, "top_k": 40, "top_p": 0.9, "min_p": 0.05,
    "frequency_penalty": 0.1, "presence_penalty": 0.1, "repeat_last_n": 64, "repeat_penalty": 1.1,
    "mirostat": 0, "mirostat_eta": 0.1, "mirostat_tau": 5, "tfs_z": 1, "use_mmap": True,
    "use_mlock": False, "num_keep": 24, "num_ctx": 2048, "num_batch": 512, "num_thread": 2,
    "num_gpu": 0, "num_predict": 20, "reasoning_effort": "low",
}  # fmt: skip
"""The controls of a chat, of which it sends those that a user has set, except the logit bias."""


def test_chats_and_tasks_over_the_openai_api(harness: Harness) -> None:
    [card, other] = harness.request("GET", "/v1/models").json()["data"]
    # A connection whose provider is llama.cpp reads this list as well.
    assert harness.request("GET", "/models").json()["data"] == [card, other]
    task = {"model": card["id"], "messages": TASK, "stream": False, "max_tokens": 9}
    reply = harness.post("/v1/chat/completions", task).json()
    assert isinstance(reply["choices"][0]["message"]["content"], str)
    streamed = {"stream": True, "model": card["id"], "messages": USER, "max_tokens": 5}
    text = harness.post("/v1/chat/completions", streamed).text
    lines = [line for line in text.splitlines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    assert "usage" not in text  # it does not ask for it
    controls = {"think": False, "keep_alive": "10m", "mirostat": 0, "num_ctx": 2048, "stop": ["z"]}
    reply = harness.post("/v1/chat/completions", {**task, **controls})
    assert reply.status_code == 200, reply.text
    names = reply.headers["x-quire-ignored-fields"].split(", ")
    assert sorted(names) == ["keep_alive", "mirostat", "num_ctx", "think"]


def test_a_tool_is_called_over_both_apis(make_scripted: MakeScripted) -> None:
    harness = make_scripted(CALL)
    asked = {"stream": True, "model": "tiny", "messages": USER, "tools": [TOOL]}
    events = harness.post("/v1/chat/completions", asked).text.split("\n\n")
    deltas = [json.loads(event[6:])["choices"][0]["delta"] for event in events[:-2]]
    parts = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert parts[0]["function"]["name"] == "get_weather"
    given = "".join(part["function"].get("arguments", "") for part in parts)
    assert json.loads(given) == {"city": "Oslo"}
    lines = harness.post("/api/chat", asked).text.splitlines()
    calls = [json.loads(line)["message"].get("tool_calls") for line in lines]
    [[call]] = filter(None, calls)
    assert call["function"]["arguments"] == {"city": "Oslo"}
    assert call["id"]


def test_results_of_tools_and_all_controls_over_the_ollama_api(
    make_scripted: MakeScripted,
) -> None:
    harness = make_scripted("It rains in Oslo today, and the wind comes from the west.")
    call = {"index": 0, "id": "call_1", "function": {"name": "f", "arguments": {"a": 1}}}
    messages = [
        *USER, {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": '{"sky": "rain"}', "tool_call_id": "call_1"},
    ]  # fmt: skip
    body = {
        "model": "tiny", "messages": messages, "stream": True, "tools": [TOOL], "options": OPTIONS,
        "keep_alive": "10m", "think": False,
    }  # fmt: skip
    reply = harness.post("/api/chat", body)
    assert reply.status_code == 200, reply.text
    last = json.loads(reply.text.splitlines()[-1])
    assert (last["done"], last["done_reason"]) == (True, "length")
    for count in ("prompt_eval_count", "eval_count", "prompt_eval_duration", "total_duration"):
        assert last[count] > 0


def test_models_over_the_ollama_api(harness: Harness) -> None:
    tags = harness.request("GET", "/api/tags").json()["models"]
    loaded = harness.request("GET", "/api/ps").json()["models"]
    assert [one["model"] for one in tags] == [one["model"] for one in loaded]
    assert all(one["expires_at"] for one in loaded)
    assert [
        int(part) for part in harness.request("GET", "/api/version").json()["version"].split(".")
    ]
    unload = {"model": "tiny", "keep_alive": 0, "prompt": ""}
    assert harness.post("/api/generate", unload).status_code == 200


@pytest.mark.parametrize("kind", [EmbeddingRequest, OllamaEmbedRequest])
def test_texts_of_documents_become_vectors(kind: type[msgspec.Struct]) -> None:
    body: dict[str, Any] = {"input": ["a", "b"], "model": "tiny"}
    if kind is OllamaEmbedRequest:
        body["truncate"] = True
    decoded = body_decoder(kind).decode(msgspec.json.encode(body))
    assert decoded.unknown == {}
    assert decoded.body.input == ["a", "b"]  # type: ignore[attr-defined]
