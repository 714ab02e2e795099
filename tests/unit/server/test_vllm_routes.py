"""vLLM's routes beside the OpenAI ones: SageMaker's, batches, the tokenizer, the server."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from quire.config.records import ParallelConfig
from quire.server import ServerArgs
from quire.server.all_endpoints import ENDPOINTS, endpoints_of
from quire.server.app import ABSENT_ROUTES
from quire.server.openapi import docs_page, openapi_document

from .conftest import Harness, MakeHarness

USER = {"role": "user", "content": "A"}


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_ping_is_a_health_check(make_harness: MakeHarness, method: str) -> None:
    keyed = make_harness(keys=("secret",))
    assert keyed.request(method, "/ping").status_code == 200
    assert make_harness(is_loaded=False).request(method, "/ping").status_code == 503


def test_readiness_has_the_name_of_kubernetes_too(make_harness: MakeHarness) -> None:
    keyed = make_harness(keys=("secret",))
    assert keyed.request("GET", "/readyz").status_code == 200
    reply = make_harness(is_loaded=False).request("GET", "/readyz")
    assert (reply.status_code, reply.json()["status"]) == (503, "loading")


def test_an_invocation_is_a_chat_or_a_completion(harness: Harness) -> None:
    options = {"max_tokens": 2}
    chat = harness.post("/invocations", {"messages": [USER], **options}).json()
    text = harness.post("/invocations", {"prompt": "A", **options}).json()
    both = harness.post("/invocations", {"messages": [USER], "prompt": "A", **options}).json()
    null = harness.post("/invocations", {"messages": None, "prompt": "A", **options}).json()
    kinds = [reply["object"] for reply in (chat, text, both, null)]
    assert kinds == ["chat.completion", "text_completion", "chat.completion", "text_completion"]
    assert text["choices"][0]["text"] == "BC"
    events = harness.post("/invocations", {"prompt": "A", "stream": True, **options}).text
    assert events.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        ({"json": {}}, 400, "Cannot find suitable handler"),
        ({"json": {"prompt": None}}, 400, "Cannot find suitable handler"),
        ({"json": []}, 400, "Invalid request body"),
        ({"json": {"messages": "x"}}, 400, "messages"),
        ({"json": {"prompt": 1}}, 400, "prompt"),
        ({"json": {"prompt": "A", "model": "other"}}, 404, "`other` does not exist"),
        ({"json": {"prompt": "A"}, "headers": {"X-Amzn-SageMaker-Adapter-Identifier": "other"}},
         404, "`other` does not exist"),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 400, "Invalid"),
        ({"content": b"{}", "headers": {"content-type": "text/csv"}}, 415, "application/json"),
    ],
)  # fmt: skip
def test_an_invocation_without_a_handler_is_refused(
    harness: Harness, options: dict[str, Any], status: int, message: str
) -> None:
    reply = harness.request("POST", "/invocations", **options)
    assert reply.status_code == status
    assert message in reply.json()["error"]["message"]


def test_a_large_invocation_is_dispatched_too(harness: Harness) -> None:
    """Its lists of token ids are read piece by piece, as those of /v1/completions are."""
    ids = [66] * 500
    padding = {"metadata": {"a": "b" * 200_000}}
    reply = harness.post("/invocations", {"prompt": ids, "max_tokens": 1, **padding})
    assert reply.json()["usage"]["prompt_tokens"] == 500
    chat = harness.post("/invocations", {"messages": [USER], "max_tokens": 1, **padding})
    assert chat.json()["object"] == "chat.completion"
    assert harness.post("/invocations", padding).status_code == 400


def test_a_batch_has_a_choice_for_each_conversation(harness: Harness) -> None:
    conversations = [[{"role": "user", "content": text}] for text in "AKX"]
    shared = {"max_tokens": 3, "logprobs": True, "top_logprobs": 1, "return_token_ids": True}
    body = {"messages": conversations, "model": "alias", **shared}
    batch = harness.post("/v1/chat/completions/batch", body).json()
    assert batch["id"].startswith("chatcmpl-")
    assert (batch["object"], batch["model"]) == ("chat.completion", "alias")
    alone = [
        harness.post("/v1/chat/completions", {**body, "messages": messages}).json()
        for messages in conversations
    ]
    assert [choice["index"] for choice in batch["choices"]] == [0, 1, 2]
    for choice, single in zip(batch["choices"], alone, strict=True):
        assert {**choice, "index": 0} == single["choices"][0]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert batch["usage"][name] == sum(single["usage"][name] for single in alone)


def test_the_echo_of_a_batch_is_each_ones_own(harness: Harness) -> None:
    conversations = [[{"role": "assistant", "content": text}] for text in "AK"]
    body = {"messages": conversations, "max_tokens": 1, "echo": True}
    reply = harness.post("/v1/chat/completions/batch", body).json()
    texts = [choice["message"]["content"] for choice in reply["choices"]]
    assert [text[0] for text in texts] == ["A", "K"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"n": 2}, "n"), ({"use_beam_search": True}, "use_beam_search"),
        ({"stream": True}, "stream"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"return_prompt_text": True}, "return_prompt_text"),
        ({"messages": []}, "messages"), ({"messages": [USER]}, "messages[0]"),
        ({"messages": [[USER], []]}, "messages[1]"),
        ({"messages": [[USER]] * 1025}, "messages"),
        ({"temperature": -1}, "temperature"), ({"max_tokens": 0}, "max_tokens"),
    ],
)  # fmt: skip
def test_what_a_batch_cannot_have_is_refused(
    harness: Harness, change: dict[str, Any], param: str
) -> None:
    body = {"messages": [[USER], [USER]], "max_tokens": 1, **change}
    reply = harness.post("/v1/chat/completions/batch", body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


def test_the_tokenizer_tells_of_itself_when_asked_to(make_harness: MakeHarness) -> None:
    off = make_harness().request("GET", "/tokenizer_info")
    assert off.status_code == 404
    assert "--enable-tokenizer-info-endpoint" in off.json()["error"]["message"]
    harness = make_harness(enable_tokenizer_info_endpoint=True)
    assert harness.model.engine is not None
    tokenizer = harness.model.engine.tokenizer
    tokenizer.config |= {
        "eos_token": {"content": "</s>", "lstrip": False}, "vocab_file": "/a/b",
        "added_tokens_decoder": {"0": {"content": "<s>"}}, "model_max_length": 10**30,
    }  # fmt: skip
    info = harness.request("GET", "/tokenizer_info").json()
    assert info["tokenizer_class"]
    assert info["eos_token"] == "</s>"
    assert info["added_tokens_decoder"] == {"0": "<s>"}
    assert "vocab_file" not in info


def test_a_template_in_a_file_of_its_own_is_told(
    make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = make_harness(enable_tokenizer_info_endpoint=True)
    config = harness.model.tokenizer().config
    template = config["chat_template"]
    monkeypatch.delitem(config, "chat_template")
    assert harness.request("GET", "/tokenizer_info").json()["chat_template"] == template


def test_development_routes_are_off_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, make_harness: MakeHarness
) -> None:
    development = [endpoint for endpoint in ENDPOINTS if endpoint.switch == "dev"]
    harness = make_harness()
    for endpoint in development:
        reply = harness.request(endpoint.method, endpoint.path)
        assert reply.status_code == 404
        assert "--enable-dev-routes" in reply.json()["error"]["message"]
        assert endpoint.path not in harness.app.state.openapi()["paths"]
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "0")
    assert not set(development) & set(endpoints_of(ServerArgs()))
    assert set(development) <= set(endpoints_of(ServerArgs(enable_dev_routes=True)))
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    assert set(development) <= set(endpoints_of(ServerArgs()))
    assert "/server_info" in make_harness().app.state.openapi()["paths"]


def test_development_routes_need_the_key(make_harness: MakeHarness) -> None:
    harness = make_harness(keys=("secret",), enable_dev_routes=True)
    for endpoint in ENDPOINTS:
        if endpoint.switch == "dev":
            assert harness.request(endpoint.method, endpoint.path).status_code == 401


@pytest.mark.parametrize("path", ABSENT_ROUTES)
def test_a_route_that_does_not_exist_says_why(harness: Harness, path: str) -> None:
    reply = harness.post(path.replace("{response_id}", "x"), {})
    assert reply.status_code == 404
    assert ABSENT_ROUTES[path] in reply.text
    assert path not in {endpoint.path for endpoint in ENDPOINTS}


def test_the_server_tells_of_itself(
    make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_THREADS", "3")
    for name in ("QUIRE_API_KEY", "VLLM_HF_TOKEN", "VLLM_DB_PASSWORD", "QUIRE_SECRET"):
        monkeypatch.setenv(name, "hidden-value")
    harness = make_harness(enable_dev_routes=True)
    text = harness.request("GET", "/server_info")
    assert "max_model_len=512" in text.json()["vllm_config"]
    json = harness.request("GET", "/server_info?config_format=json")
    config = json.json()["vllm_config"]
    for part, name, value in (
        ("model_config", "max_model_len", 512),
        ("cache_config", "num_gpu_blocks", harness.model.config.cache.num_blocks),
        ("cache_config", "cache_dtype", harness.model.config.cache.kv_cache_dtype),
        ("scheduler_config", "max_num_seqs", harness.model.config.scheduler.max_num_seqs),
        ("parallel_config", "world_size", 1),
    ):
        assert config[part][name] == value
    assert (config["speculative_config"], config["lora_config"]) == (None, None)
    assert json.json()["vllm_env"]["QUIRE_THREADS"] == "3"
    assert "hidden-value" not in text.text + json.text
    assert text.json()["system_env"]["python_version"]
    assert harness.request("GET", "/get_world_size?include_dp=false").json() == {"world_size": 1}


def test_the_world_size_counts_ranks(make_harness: MakeHarness) -> None:
    harness = make_harness(enable_dev_routes=True)
    engine = harness.model.engine
    assert engine is not None
    parallel = ParallelConfig(tensor_parallel_size=2, data_parallel_size=3)
    engine.config = dataclasses.replace(engine.config, parallel=parallel)
    for query, count in {"": 6, "?include_dp=false": 2}.items():
        assert harness.request("GET", f"/get_world_size{query}").json() == {"world_size": count}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/server_info?config_format=xml", "it is one of json, text"),
        ("/server_info?config_format=", "it is one of json, text"),
        ("/server_info?config_format=json&config_format=text", "more than once"),
        ("/server_info?format=json", "this route has config_format"),
        ("/get_world_size?include_dp=2", "it is true or false"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(
    make_harness: MakeHarness, path: str, message: str
) -> None:
    reply = make_harness(enable_dev_routes=True).request("GET", path)
    assert reply.status_code == 400
    assert message in reply.json()["error"]["message"]


def test_every_endpoint_can_be_described() -> None:
    document = openapi_document(ENDPOINTS, True)
    described = {
        (method.upper(), path) for path, one in document["paths"].items() for method in one
    }
    assert described == {(one.method, one.path) for one in ENDPOINTS}
    assert docs_page(document)


def test_the_load_comes_as_a_header_when_asked_for(harness: Harness) -> None:
    def header(path: str, body: dict[str, Any], form: str) -> str | None:
        headers = {"endpoint-load-metrics-format": form}
        reply = harness.post(path, {**body, "max_tokens": 1}, headers=headers)
        return reply.headers.get("endpoint-load-metrics")

    chat, text = {"messages": [USER]}, {"prompt": "A"}
    assert header("/v1/completions", text, "TEXT") == (
        "TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.0"
    )
    assert header("/v1/chat/completions", chat, "json") == (
        'JSON {"named_metrics": {"num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0}}'
    )
    assert header("/v1/completions", text, "BIN") is None
    plain = harness.post("/v1/completions", {**text, "max_tokens": 1})
    assert "endpoint-load-metrics" not in plain.headers
