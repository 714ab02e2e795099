"""Routes of text-generation-inference, llama-server and SGLang, and names of models that are not
served."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from fake_core import FakeCore

from quire.protocol import EngineCoreRequest

from .conftest import Harness, MakeHarness, MakeScripted

HEADER = "x-quire-ignored-fields"
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def generated(harness: Harness, path: str = "/generate", **parameters: Any) -> Any:
    reply = harness.post(path, {"inputs": "ab", "parameters": parameters})
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_text_is_generated(make_scripted: MakeScripted) -> None:
    harness = make_scripted("one two three")
    assert generated(harness) == {"generated_text": "one two three"}
    assert generated(harness, return_full_text=True)["generated_text"] == "abone two three"
    assert generated(harness, max_new_tokens=3)["generated_text"] == "one"
    found = generated(harness, details=True, seed=7)["details"]
    assert (found["finish_reason"], found["seed"], found["prefill"]) == ("eos_token", 7, [])
    assert found["generated_tokens"] == len(found["tokens"]) == len("one two three") + 1
    assert "".join(one["text"] for one in found["tokens"] if not one["special"]) == "one two three"
    assert found["tokens"][-1]["special"]
    cut = generated(harness, stop=["two"], details=True)
    assert cut["generated_text"] == "one two"
    assert cut["details"]["finish_reason"] == "stop_sequence"
    assert (
        generated(harness, max_new_tokens=2, details=True)["details"]["finish_reason"] == "length"
    )


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[5:]) for line in text.splitlines() if line.startswith("data:")]


@pytest.mark.parametrize("path", ["/generate_stream", "/"])
def test_a_text_is_streamed(make_scripted: MakeScripted, path: str) -> None:
    harness = make_scripted("one two three")
    body = {"inputs": "ab", "parameters": {"stop": ["three"]}, "stream": True}
    reply = harness.post(path, body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    found = events(reply.text)
    assert [one["index"] for one in found] == [*range(1, len(found) + 1)]
    texts = [one["token"]["text"] for one in found if not one["token"]["special"]]
    assert "".join(texts) == "one two three"
    assert all(one["generated_text"] is None for one in found[:-1])
    last = found[-1]
    assert last["generated_text"] == "one two three"
    assert last["details"] == {
        "finish_reason": "stop_sequence", "generated_tokens": 13, "input_length": 2, "seed": None
    }  # fmt: skip


def test_the_root_answers_with_a_list(make_scripted: MakeScripted) -> None:
    harness = make_scripted("one")
    assert generated(harness, "/") == [{"generated_text": "one"}]


def test_vertex_ai_gets_predictions(make_scripted: MakeScripted) -> None:
    harness = make_scripted("one")
    texts = [{"inputs": "a"}, {"inputs": "b", "parameters": {"max_new_tokens": 1}}]
    assert harness.post("/vertex", {"instances": texts}).json() == {"predictions": ["one", "o"]}
    assert harness.post("/vertex", {"instances": []}).json() == {"predictions": []}
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
    both = harness.post("/vertex", {"instances": [{**chat, "unknown": 1}, texts[1]], "model": "x"})
    assert both.json() == {"predictions": ["on", "o"]}
    assert both.headers[HEADER] == "model, instances.unknown"
    thinking = make_scripted("<think>so</think>two")
    reply = thinking.post("/vertex", {"instances": [{**chat, "max_tokens": 40}]})
    assert reply.json() == {"predictions": ["two"]}
    many = harness.post("/vertex", {"instances": [{"inputs": "a"}] * 2000})
    assert many.status_code == 400
    assert many.json()["error"]["param"] == "instances"


class Noting(FakeCore):
    """Notes the last request."""

    last: EngineCoreRequest

    def add_request(self, request: EngineCoreRequest) -> None:
        Noting.last = request
        super().add_request(request)


def test_parameters_mean_what_they_mean_there(make_harness: MakeHarness) -> None:
    harness = make_harness(core=Noting)

    def params(**given: Any) -> Any:
        generated(harness, **given)
        return Noting.last.sampling_params

    plain = params()
    assert (plain.temperature, plain.max_tokens) == (0.0, 100)
    assert params(do_sample=True, temperature=0.5).temperature == 0.5
    assert params(top_p=0.5).temperature == 1.0
    assert params(top_k=4).top_k == 4
    assert params(repetition_penalty=1.2, frequency_penalty=0.1).repetition_penalty == 1.2
    generated(harness, truncate=1)
    assert len(Noting.last.prompt_token_ids) == 1
    generated(harness, grammar={"type": "regex", "value": "a+"})
    assert Noting.last.sampling_params.structured_outputs.regex == "a+"
    generated(harness, grammar={"type": "json", "value": {"type": "integer"}})
    assert json.loads(Noting.last.sampling_params.structured_outputs.json) == {"type": "integer"}


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"best_of": 2}, "parameters.best_of"), ({"watermark": True}, "parameters.watermark"),
        ({"typical_p": 0.9}, "parameters.typical_p"), ({"top_n_tokens": 2}, "top_n_tokens"),
        ({"decoder_input_details": True}, "decoder_input_details"), ({"truncate": 0}, "truncate"),
        ({"max_new_tokens": 0}, "max_new_tokens"), ({"temperature": -1.0}, "temperature"),
        ({"grammar": {"type": "xml", "value": ""}}, "grammar"), ({"adapter_id": "x"}, "model"),
    ],
    ids=str,
)  # fmt: skip
def test_mistakes_are_named(harness: Harness, parameters: dict[str, Any], param: str) -> None:
    reply = harness.post("/generate", {"inputs": "a", "parameters": parameters})
    assert reply.status_code in (400, 404), reply.text
    assert param in (reply.json()["error"]["param"] or reply.text)


async def test_a_client_that_leaves_ends_its_request(make_scripted: MakeScripted) -> None:
    harness = make_scripted("x" * 300, step_s=0.01)

    async with harness.client() as client:
        asking = asyncio.ensure_future(
            client.post("/vertex", json={"instances": [{"inputs": "a"}]})
        )
        while not harness.model.engine.requests:
            await asyncio.sleep(0.01)
        asking.cancel()
        while harness.model.engine.requests:
            await asyncio.sleep(0.01)


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "inputs"), ({"inputs": 1}, "inputs"), ({"messages": []}, "messages"),
    ({"messages": "a"}, "messages"), ({**CHAT, "n": 2}, "n"), ({**CHAT, "stream": True}, "stream"),
    ({"inputs": "a", "parameters": {"stop": 1}}, "parameters.stop"),
    ({"inputs": "a", "parameters": {"max_new_tokens": 0}}, "parameters.max_new_tokens"),
    ({"inputs": "a", "parameters": {"top_p": 7, "do_sample": True}}, "parameters.top_p"),
    ({"inputs": "a", "parameters": {"grammar": {"type": "regex", "value": "(("}}},
     "parameters.grammar"),
    ({"inputs": "a" * 5000}, "inputs"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "field"), BAD, ids=lambda one: str(one)[:60])
def test_errors_name_the_field_that_was_sent(
    harness: Harness, body: dict[str, Any], field: str
) -> None:
    paths = {"/vertex": ({"instances": [{"inputs": "a"}, body]}, f"instances[1].{field}")}
    if "messages" not in body:
        paths |= dict.fromkeys(("/generate", "/generate_stream", "/"), (body, field))
    for path, (sent, name) in paths.items():
        reply = harness.post(path, sent)
        assert reply.status_code == 400, reply.text
        error = reply.json()["error"]
        if body:  # a field that is missing has no name of its own
            assert error["param"] == name, error
        assert "max_tokens" not in error["message"]


def test_the_same_routes_without_a_version(harness: Harness) -> None:
    response = {"input": "a", "max_output_tokens": 2}
    for path, body, name in (
        ("/chat/completions", CHAT, "choices"), ("/responses", response, "usage"),
    ):  # fmt: skip
        found = [
            harness.post(one, {**body, "temperature": 0}).json()[name]
            for one in (path, f"/v1{path}")
        ]
        assert found[0] == found[1]
    assert harness.request("GET", "/v1/health").json() == harness.request("GET", "/health").json()
    for path in ("/reranking", "/v1/reranking"):
        reply = harness.post(path, {"query": "a", "documents": ["b"]})
        assert "generates text" in reply.json()["error"]["message"]


def test_probes_need_no_key(make_harness: MakeHarness) -> None:
    harness = make_harness(keys=("key",))
    assert harness.request("GET", "/v1/health").status_code == 200
    assert harness.post("/generate", {"inputs": "a"}).status_code == 401


ANY_NAME: list[tuple[str, dict[str, Any]]] = [
    ("/completion", {"prompt": "a", "n_predict": 1}),
    ("/apply-template", {"messages": CHAT["messages"]}),
    ("/generate", {"inputs": "a"}),
    ("/", {"inputs": "a"}),
]
KNOWN_NAME: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "a", "max_tokens": 1}), ("/v1/chat/completions", CHAT),
    ("/tokenize", {"prompt": "a"}),
]  # fmt: skip


def test_any_name_means_the_one_model_where_the_other_server_takes_it(
    make_harness: MakeHarness,
) -> None:
    harness = make_harness()
    for path, body in ANY_NAME:
        reply = harness.post(path, {**body, "model": "dummy"})
        assert reply.status_code == 200, (path, reply.text)
        assert "model" in reply.headers[HEADER]
        assert HEADER not in harness.post(path, {**body, "model": "alias"}).headers
    for path, body in KNOWN_NAME:
        assert harness.post(path, {**body, "model": "dummy"}).status_code == 404, path
        assert harness.post(f"{path}?model=dummy", {**body}).status_code == 404, path
    others = [("/v1/messages", CHAT), ("/api/chat", {**CHAT, "stream": False})]
    for path, body in others:
        assert harness.post(path, {**body, "model": "dummy"}).status_code == 404, path
    harness = make_harness(allow_any_model_name=True)
    for path, body in (*KNOWN_NAME, *others):
        reply = harness.post(path, {**body, "model": "dummy"})
        assert reply.status_code == 200, (path, reply.text)
        assert "model" in reply.headers[HEADER]
        assert reply.json().get("model", "tiny") == "tiny"
        known = harness.post(path, {**body, "model": "tiny:latest"})
        assert "model" not in known.headers.get(HEADER, "")


def test_the_facts_that_routers_read(harness: Harness) -> None:
    info = harness.request("GET", "/get_server_info").json()
    config = harness.model.config
    size = config.cache.block_size
    assert info["kv_block_size"] == info["page_size"] == size
    assert info["max_total_num_tokens"] == size * config.cache.num_blocks
    assert info["served_model_name"] == harness.model.names[0]
    model = harness.request("GET", "/model_info").json()
    assert model == harness.request("GET", "/get_model_info").json()
    assert (model["is_generation"], model["model_path"]) == (True, config.model.model)
    assert model["architectures"] == list(config.model.hf_config["architectures"])


def test_the_load_is_a_list_with_the_tokens(make_harness: MakeHarness) -> None:
    idle = {"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0}
    assert make_harness().request("GET", "/get_load").json() == [idle]
    keyed = make_harness(keys=("secret",))
    assert keyed.request("GET", "/get_load").status_code == 401


def test_the_metrics_that_endpoint_pickers_read(harness: Harness) -> None:
    """llm-d's `core-metrics-extractor` and the Gateway API inference extension take the value of
    a gauge, and two labels of `vllm:cache_config_info` as numbers."""
    lines = harness.request("GET", "/metrics").text.splitlines()
    kinds = dict(line.split(" ")[2:4] for line in lines if line.startswith("# TYPE vllm:"))
    series = dict(line.rsplit(" ", 1) for line in lines if line.startswith("vllm:"))
    for name in ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"):
        assert kinds[f"vllm:{name}"] == "gauge"
        [value] = [value for key, value in series.items() if key.startswith(f"vllm:{name}{{")]
        assert float(value) == 0
    [info] = [key for key in series if key.startswith("vllm:cache_config_info{")]
    labels = dict(re.findall(r'(\w+)="([^"]*)"', info))
    cache = harness.model.config.cache
    assert int(labels["block_size"]) == cache.block_size
    assert int(labels["num_gpu_blocks"]) == cache.num_blocks
    assert float(series[info]) == 1
