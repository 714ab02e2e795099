"""Ollama's routes: the conversion of requests, replies whole and in lines, and errors."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from gguf_files import gguf_bytes

from quire.errors import RequestError
from quire.gguf.facts import read_facts
from quire.server.apis.llama_server.routes import read_llama
from quire.server.apis.llama_server.schema import LlamaCompletionRequest
from quire.server.apis.ollama.reading import read_chat, read_generate
from quire.server.apis.ollama.schema import (
    CalledFunction,
    CalledTool,
    GenerateRequest,
    OllamaChatRequest,
    OllamaMessage,
)
from quire.server.conversation.conversation import Conversation
from quire.server.requests.prompts import params_of
from quire.server.requests.request import TextRequest
from quire.server.requests.texts import Gap, TextPrompts

from .conftest import Harness

USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def conversation(asked: TextRequest[Any]) -> Conversation:
    assert isinstance(asked.prompt, Conversation)
    return asked.prompt


def lines_of(reply: httpx.Response) -> list[dict[str, Any]]:
    assert reply.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in reply.text.splitlines() if line]


def test_a_chat_and_its_stream_say_the_same(harness: Harness) -> None:
    body = {
        "model": f"{harness.context.names[0]}:latest", "messages": [USER],
        "options": {"num_predict": 7, "temperature": 0, "num_ctx": 2048}, "keep_alive": "5m",
    }  # fmt: skip
    whole = harness.post("/api/chat", {**body, "stream": False})
    assert whole.headers["x-quire-ignored-fields"] == "options.num_ctx, keep_alive"
    whole = whole.json()
    assert (whole["done"], whole["done_reason"], whole["eval_count"]) == (True, "length", 7)
    assert whole["prompt_eval_count"] > 0
    assert whole["total_duration"] >= whole["eval_duration"] >= 0
    assert whole["created_at"].endswith("Z")
    lines = lines_of(harness.post("/api/chat", body))
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert "".join(line["message"]["content"] for line in lines) == whole["message"]["content"]
    assert lines[-1]["eval_count"] == 7
    assert "eval_count" not in lines[0]


def test_a_prompt_with_and_without_the_template(harness: Harness) -> None:
    body = {"prompt": "ab", "stream": False, "options": {"num_predict": 3}}
    plain = harness.post("/api/generate", {**body, "raw": True}).json()
    assert plain["prompt_eval_count"] == len(harness.model.tokenizer().encode("ab"))
    chat = harness.post("/api/generate", body).json()
    assert chat["prompt_eval_count"] > plain["prompt_eval_count"]
    lines = lines_of(harness.post("/api/generate", {**body, "stream": True, "raw": True}))
    assert "".join(line["response"] for line in lines) == plain["response"]


def test_an_empty_request_looks_the_model_up(harness: Harness) -> None:
    for path in ("/api/chat", "/api/generate"):
        reply = harness.post(path, {"model": harness.context.names[0]}).json()
        assert (reply["done"], reply["done_reason"]) == (True, "load")
        assert harness.post(path, {"model": "other"}).status_code == 404


def test_models_are_listed_and_shown(harness: Harness) -> None:
    name = harness.context.names[0]
    [listed, *_] = harness.request("GET", "/api/tags").json()["models"]
    assert listed["name"] == listed["model"] == name
    assert listed["size"] >= 0
    assert len(listed["digest"]) == 64
    assert listed["details"]["format"] == "safetensors"
    [loaded, *_] = harness.request("GET", "/api/ps").json()["models"]
    assert loaded["context_length"] == harness.model.config.model.max_model_len
    shown = harness.post("/api/show", {"model": f"{name}:latest"}).json()
    assert shown["details"] == listed["details"]
    assert "completion" in shown["capabilities"]
    assert shown["model_info"]["general.parameter_count"] == 0  # of a fake model
    assert harness.request("GET", "/api/version").json()["version"].count(".") == 2
    missing = harness.post("/api/show", {"model": "other"})
    assert missing.status_code == 404
    assert isinstance(missing.json()["error"], str)


def test_options_and_fields_are_read() -> None:
    asked = OllamaChatRequest(
        messages=[OllamaMessage(role="user", content="a")], format=SCHEMA, think=False,
        options={"num_predict": -1, "stop": ["x"], "repeat_penalty": 1.1, "mirostat": 0},
    )  # fmt: skip
    made = read_chat(asked)
    assert made.sampling == {"stop": ["x"], "repetition_penalty": 1.1}
    assert (made.max_tokens, made.reply.stream, made.ignored) == (None, True, [])
    assert conversation(made).effort == "none"
    assert made.constraint == {"json": SCHEMA}
    made = read_generate(GenerateRequest(prompt="p", system="s", format="json", think="low"))
    assert [one.role for one in conversation(made).messages] == ["system", "user"]
    assert conversation(made).effort == "low"
    assert made.constraint == {"json_object": True}
    made = read_generate(GenerateRequest(options={"num_gpu": 1, "seed": 2}))
    assert made.ignored == ["options.num_gpu"]


def test_results_of_tools_find_their_calls() -> None:
    calls = [
        CalledTool(function=CalledFunction(name=name, arguments={"a": 1})) for name in ("f", "g")
    ]
    asked = read_chat(OllamaChatRequest(messages=[
        OllamaMessage(role="user", content="a"),
        OllamaMessage(role="assistant", thinking="hm", tool_calls=calls),
        OllamaMessage(role="tool", content="2", tool_name="g"),
        OllamaMessage(role="tool", content="1"),
    ]))  # fmt: skip
    messages = conversation(asked).messages
    ids = [call["id"] for call in messages[1].tool_calls or []]
    assert [one.tool_call_id for one in messages[2:]] == ids[::-1]
    assert messages[1].reasoning == "hm"
    assert (messages[1].tool_calls or [])[0]["function"]["arguments"] == '{"a": 1}'


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"options": {"num_predict": 0}}, "num_predict must be a positive number"),
        ({"options": {"colour": 1}}, "options has no 'colour'"),
        ({"options": {"temperature": "warm"}}, r"\$\.options\.temperature"),
        ({"options": {"repeat_penalty": "x"}}, r"\$\.options\.repeat_penalty"),
        ({"options": {"repeat_penalty": 0}}, r"^options\.repeat_penalty must be"),
        ({"options": {"mirostat": 2}}, "options.mirostat must be 0"),
        ({"options": {"top_p": 7}}, r"^options\.top_p must be"),
        ({"options": {"repeat_last_n": -2}}, "repeat_last_n must be at least -1"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"think": "high"}, "does not support thinking"),
        ({"messages": [{**USER, "images": ["abc"]}]}, "takes no images"),
        ({"tools": [{"type": "function"}]}, r"tools\[0\]"),
        ({"format": "yaml"}, "format"),
        ({"messages": "x"}, "messages"),
    ],
)  # fmt: skip
def test_mistakes_are_named(harness: Harness, fields: dict[str, Any], text: str) -> None:
    reply = harness.post("/api/chat", {"messages": [USER], "stream": False, **fields})
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert isinstance(error, str)
    assert re.search(text, error), error


def test_more_tokens_than_fit_are_no_error(harness: Harness) -> None:
    chat = {"messages": [USER], "stream": False, "options": {"num_predict": 10**12}}
    reply = harness.post("/api/chat", chat)
    assert reply.status_code == 200, reply.text
    plain = {"prompt": "a", "n_predict": 10**9}
    assert harness.post("/completion", plain).status_code == 200


def test_what_a_prompt_cannot_have() -> None:
    with pytest.raises(RequestError, match="runs no Go templates; send the finished prompt"):
        read_generate(GenerateRequest(prompt="a", template="{{ .Prompt }}"))
    given: dict[str, Any] = {"system": "x", "images": ["x"], "context": [1]}
    for field, others in {"raw": given, "suffix": ("images", "context")}.items():
        for name in others:
            with pytest.raises(RequestError, match=f"{name} must be empty with {field}"):
                read_generate(GenerateRequest(prompt="a", **{field: True, name: given[name]}))


def test_a_gap_has_no_system_message_and_a_raw_prompt_no_gap() -> None:
    asked = read_generate(GenerateRequest(prompt="a", suffix="b", system="s"))
    assert (asked.prompt, asked.ignored) == (Gap("a", "b"), ["system"])
    asked = read_generate(GenerateRequest(prompt="a", suffix="b", raw=True))
    assert (asked.prompt, asked.ignored) == (TextPrompts("a"), ["suffix"])


def test_a_context_goes_on_with_an_earlier_reply(harness: Harness) -> None:
    body = {"prompt": "ab", "options": {"num_predict": 3}}
    lines = lines_of(harness.post("/api/generate", body))
    assert [line for line in lines[:-1] if "context" in line] == []
    context = lines[-1]["context"]
    assert len(context) == lines[-1]["prompt_eval_count"] + 3
    again = harness.post("/api/generate", {**body, "context": context, "stream": False}).json()
    assert again["prompt_eval_count"] == 2 * lines[-1]["prompt_eval_count"] + 3
    assert again["context"][: len(context)] == context
    assert "context" not in harness.post("/api/generate", {**body, "raw": True}).text
    for wrong in ([-1], [2**31], ["a"], [10**6], [1] * 600):
        reply = harness.post("/api/generate", {**body, "context": wrong})
        assert reply.status_code == 400, reply.text
        assert isinstance(reply.json()["error"], str)


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_log_probabilities_are_those_of_each_token(harness: Harness, path: str) -> None:
    body = {
        "messages": [USER], "prompt": "ab", "logprobs": True, "top_logprobs": 2,
        "options": {"num_predict": 5},
    }  # fmt: skip
    del body["prompt" if path == "/api/chat" else "messages"]
    whole = harness.post(path, {**body, "stream": False}).json()["logprobs"]
    assert [len(one["top_logprobs"]) for one in whole] == [2] * 5
    assert set(whole[0]) == {"token", "logprob", "bytes", "top_logprobs"}
    lines = lines_of(harness.post(path, body))
    streamed = [one for line in lines for one in line.get("logprobs", ())]
    assert [one["bytes"] for one in streamed] == [one["bytes"] for one in whole]
    del body["top_logprobs"]
    assert harness.post(path, {**body, "stream": False}).json()["logprobs"][0]["top_logprobs"] == []
    assert "logprobs" not in harness.post(path, {**body, "logprobs": False}).text


def test_defaults_are_those_of_the_api_below_the_models_and_the_requests(harness: Harness) -> None:
    messages = [OllamaMessage(role="user", content="a")]
    chat = read_chat(OllamaChatRequest(messages=messages, options={"top_k": 7}))
    llama = read_llama(LlamaCompletionRequest(prompt="a", top_k=7), TextPrompts("a"))
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "repeat_last_n")
    for asked, wanted in (
        (chat, [0.8, 7, 0.9, 0, 1.1, 64]), (llama, [0.8, 7, 0.95, 0.05, 1, 64]),
    ):  # fmt: skip
        made = params_of(asked, {}, None)
        assert [getattr(made, name) for name in names] == wanted
        made = params_of(asked, {"top_k": 20, "top_p": 0.5}, None)
        assert [made.temperature, made.top_k, made.top_p] == [0.8, 7, 0.5]
    plain = params_of(TextRequest(prompt=None), {}, None)
    assert (plain.temperature, plain.repeat_last_n) == (1, None)
    params = harness.request("GET", "/props").json()["default_generation_settings"]["params"]
    assert (params["top_p"], params["min_p"]) == (0.95, 0.05)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "application/octet-stream"}, 200),
        ({"content-type": "application/x-www-form-urlencoded"}, 200),
        ({"content-type": "application/octet-stream", "origin": "http://quire"}, 415),
        ({"content-type": "text/plain", "origin": "http://quire"}, 415),
        ({"content-type": "application/json", "origin": "http://quire"}, 200),
        ({"content-type": "text/plain", "origin": "http://elsewhere"}, 403),
    ],
)
def test_clients_need_not_name_the_content_type_but_pages_must(
    harness: Harness, headers: dict[str, str], status: int
) -> None:
    body = json.dumps({"messages": [USER], "stream": False, "options": {"num_predict": 1}})
    reply = harness.request("POST", "/api/chat", content=body, headers=headers)
    assert reply.status_code == status, reply.text


def test_facts_of_gguf_files_need_no_loaded_model(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {
        "general.architecture": "gemma9", "general.file_type": 15, "general.license": "mit",
        "tokenizer.ggml.tokens": ["a"] * 6, "tokenizer.chat_template": "x",
    }  # fmt: skip
    tensors = {"a.weight": (1, [32, 4], bytes(256)), "b.weight": (0, [8], bytes(32))}
    (tmp_path / "model.gguf").write_bytes(gguf_bytes(known, tensors))
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}")
    model, context = harness.model, harness.context
    config = model.config
    changed = dataclasses.replace(config.model, path=tmp_path, tokenizer_path=None)
    model.planned, model.num_parameters = dataclasses.replace(config, model=changed), None
    monkeypatch.setattr(model, "engine", None)
    shown = harness.post("/api/show", {"model": context.names[0]}).json()
    details = {
        "parent_model": "", "format": "gguf", "family": "gemma9", "families": ["gemma9"],
        "parameter_size": "0.00M", "quantization_level": "Q4_K_M",
    }  # fmt: skip
    assert shown["details"] == details
    assert harness.request("GET", "/api/tags").json()["models"][0]["details"] == details
    info = shown["model_info"]
    assert (info["general.parameter_count"], info["tokenizer.ggml.tokens"]) == (136, [])
    assert "tokenizer.chat_template" not in info
    assert shown["template"].startswith("{% for m")
    assert shown["license"] == "mit"
    whole = harness.post("/api/show", {"model": context.names[0], "verbose": True}).json()
    assert whole["model_info"]["tokenizer.ggml.tokens"] == ["a"] * 6


def test_the_most_common_type_stands_for_a_missing_file_type(tmp_path: Path) -> None:
    tensors = {"a": (1, [32, 4], bytes(256)), "b": (0, [8], bytes(32))}
    for extra in ({}, {"general.file_type": 99}, {"general.file_type": "x"}):
        file = tmp_path / "model.gguf"
        file.write_bytes(gguf_bytes({"general.architecture": "llama", **extra}, tensors))
        assert read_facts([file]).file_type == "F16"
