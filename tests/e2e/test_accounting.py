"""Stream or not, the same text, tokens, finish reasons and usage; and the counters agree."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from .conftest import RunningServer, StartServer

CASES: list[dict[str, Any]] = [
    {"prompt": "Hello there", "max_tokens": 12, "temperature": 0},
    {"prompt": "Hello there", "max_tokens": 40, "seed": 1},
    {"prompt": "Hello there", "max_tokens": 25, "seed": 2, "n": 3},
    {"prompt": ["one", "two", "three"], "max_tokens": 9, "seed": 3, "n": 2},
    {"prompt": [[64, 65], [66]], "max_tokens": 9, "seed": 4, "echo": True},
    {"prompt": "count", "max_tokens": 60, "seed": 5, "stop": ["i", "e", "\n", "a"]},
    {"prompt": "count", "max_tokens": 60, "seed": 6, "stop": ["i"],
     "include_stop_str_in_output": True},
    {"prompt": "x", "max_tokens": 30, "seed": 7, "stop_token_ids": list(range(0, 256, 9))},
    {"prompt": "x", "max_tokens": 30, "seed": 8, "ignore_eos": True, "min_tokens": 10,
     "skip_special_tokens": False},
    {"prompt": "é漢字🙂", "max_tokens": 30, "seed": 9, "logprobs": 2},
]  # fmt: skip


def streamed(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """A streamed reply, put together again."""
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    choices: dict[int, dict[str, Any]] = {}
    usage, events = None, []
    with client.stream("POST", path, json=body) as reply:
        assert reply.status_code == 200, reply.read()
        events = [line[6:] for line in reply.iter_lines() if line]
    assert events[-1] == "[DONE]"
    for event in map(json.loads, events[:-1]):
        usage = event["usage"] or usage
        for choice in event["choices"]:
            held = choices.setdefault(choice["index"], {"text": "", "token_ids": [], "ends": []})
            held["text"] += choice.get("text", choice.get("delta", {}).get("content")) or ""
            held["token_ids"] += choice["token_ids"] or []
            if choice["finish_reason"]:
                held["ends"].append((choice["finish_reason"], choice["stop_reason"]))
    return {"choices": [choices[index] for index in sorted(choices)], "usage": usage}


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_stream_and_whole_reply_are_the_same(server: RunningServer, case: dict[str, Any]) -> None:
    body = {**case, "return_token_ids": True}
    with server.client() as client:
        stream = streamed(client, "/v1/completions", body)
        whole = client.post("/v1/completions", json=body).raise_for_status().json()
    assert len(whole["choices"]) == len(stream["choices"])
    for choice, held in zip(whole["choices"], stream["choices"], strict=True):
        assert held["text"] == choice["text"]
        assert held["token_ids"] == choice["token_ids"]
        assert held["ends"] == [(choice["finish_reason"], choice["stop_reason"])]
    plain = {name: value for name, value in whole["usage"].items() if "details" not in name}
    assert plain == {
        name: value for name, value in stream["usage"].items() if "details" not in name
    }
    assert plain["completion_tokens"] == sum(len(one["token_ids"]) for one in stream["choices"])


def test_usage_adds_up_to_the_counters(start_server: StartServer) -> None:
    server = start_server()
    totals = {"prompt_tokens": 0, "completion_tokens": 0, "cached": 0, "requests": 0}
    prefix = "A long beginning that fills several blocks of the cache. " * 3
    bodies = [*CASES, *({"prompt": prefix + str(i), "max_tokens": 5} for i in range(4))]
    with server.client() as client:
        for body in bodies:
            for usage in (
                client.post("/v1/completions", json=body).raise_for_status().json()["usage"],
                streamed(client, "/v1/completions", body)["usage"],
            ):
                totals["prompt_tokens"] += usage["prompt_tokens"]
                totals["completion_tokens"] += usage["completion_tokens"]
                totals["cached"] += usage["prompt_tokens_details"]["cached_tokens"]
                totals["requests"] += 1
    labels = '{engine="0",model_name="tiny"}'
    metrics = server.metrics()
    assert metrics[f"vllm:prompt_tokens_total{labels}"] == totals["prompt_tokens"]
    assert metrics[f"vllm:generation_tokens_total{labels}"] == totals["completion_tokens"]
    assert metrics[f"vllm:prompt_tokens_cached_total{labels}"] == totals["cached"]
    assert totals["cached"] > 0
    http = 'http_requests_total{handler="/v1/completions",method="POST",status="2xx"}'
    assert metrics[http] == totals["requests"]


def test_continuous_usage_ends_at_the_total(server: RunningServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {
        "messages": [{"role": "user", "content": "Go on"}], "max_tokens": 15, "seed": 3,
        "stream": True, "stream_options": options, "ignore_eos": True,
    }  # fmt: skip
    with server.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as r:
        events = [json.loads(line[6:]) for line in r.iter_lines() if line and "[DONE]" not in line]
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == 15
    assert events[-1]["choices"] == []


def test_render_shows_what_runs(server: RunningServer) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "seed": 1}
    with server.client() as client:
        shown = client.post("/v1/chat/completions/render", json=chat).raise_for_status().json()
        assert shown["prompt"] == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        run = client.post(
            "/v1/chat/completions", json={**chat, "return_token_ids": True}
        ).raise_for_status().json()  # fmt: skip
        assert run["prompt_token_ids"] == shown["token_ids"]
        again = client.post(
            "/v1/completions",
            json={"prompt": shown["token_ids"], "max_tokens": 4, "seed": 1},
        ).json()
        assert again["choices"][0]["text"] == run["choices"][0]["message"]["content"]
        tokens = client.post("/tokenize", json={"messages": chat["messages"]}).json()
        assert tokens["tokens"] == shown["token_ids"]
        text = client.post("/detokenize", json={"tokens": shown["token_ids"]}).json()
        assert text["prompt"] == shown["prompt"]


def test_timings_come_on_request(server: RunningServer) -> None:
    body = {"prompt": "abc", "max_tokens": 10, "ignore_eos": True}
    with server.client() as client:
        assert "metrics" not in client.post("/v1/completions", json=body).json()
        reply = client.post("/v1/completions", json={**body, "include_metrics": True}).json()
    timings = reply["metrics"]
    assert 0 < timings["time_to_first_token_ms"] < 10_000
    assert timings["tokens_per_second"] > 0
