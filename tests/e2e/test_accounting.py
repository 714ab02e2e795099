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
    {"prompt": ["Hello there", "AB"], "max_tokens": 5, "seed": 10, "n": 2, "echo": True,
     "logprobs": 3},
    {"prompt": ["Hello there", "é漢字🙂"], "max_tokens": 0, "seed": 1, "echo": True, "logprobs": 1},
    {"prompt": "Hello there", "max_tokens": 0, "seed": 1, "echo": True},
    {"prompt": "x" * 1500, "max_tokens": 3, "seed": 1, "echo": True, "logprobs": 0},
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
            merged = choices.setdefault(
                choice["index"], {"text": "", "token_ids": [], "ends": [], "logprobs": {}}
            )
            merged["text"] += choice.get("text", choice.get("delta", {}).get("content")) or ""
            merged["token_ids"] += choice["token_ids"] or []
            for name, values in (choice["logprobs"] or {}).items():
                merged["logprobs"].setdefault(name, []).extend(values)
            if choice["finish_reason"]:
                merged["ends"].append((choice["finish_reason"], choice["stop_reason"]))
    return {"choices": [choices[index] for index in sorted(choices)], "usage": usage}


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_stream_and_whole_reply_are_the_same(server: RunningServer, case: dict[str, Any]) -> None:
    body = {**case, "return_token_ids": True}
    with server.client() as client:
        stream = streamed(client, "/v1/completions", body)
        whole = client.post("/v1/completions", json=body).raise_for_status().json()
    assert len(whole["choices"]) == len(stream["choices"])
    for choice, merged in zip(whole["choices"], stream["choices"], strict=True):
        assert merged["text"] == choice["text"]
        assert merged["token_ids"] == (choice["token_ids"] or [])
        assert merged["logprobs"] == (choice["logprobs"] or {})
        assert merged["ends"] == [(choice["finish_reason"], choice["stop_reason"])]
    plain = {name: value for name, value in whole["usage"].items() if "details" not in name}
    assert plain == {
        name: value for name, value in stream["usage"].items() if "details" not in name
    }
    assert plain["completion_tokens"] == sum(len(one["token_ids"]) for one in stream["choices"])


def test_an_echoed_prompt_has_log_probabilities(server: RunningServer) -> None:
    """In the shape that evaluation tools read: nothing for the first token, and one new token."""
    text = "Hello there"
    body = {"prompt": text, "echo": True, "logprobs": 2, "temperature": 0}
    with server.client() as client:

        def ask(**changes: Any) -> dict[str, Any]:
            reply = client.post("/v1/completions", json={**body, **changes}).raise_for_status()
            return reply.json()["choices"][0]

        one, none = ask(max_tokens=1), ask(max_tokens=0)
        token_ids = client.post("/tokenize", json={"prompt": text}).json()["tokens"]
        by_ids = ask(max_tokens=1, prompt=token_ids)
        reported = ask(max_tokens=1, echo=False, logprobs=None, prompt_logprobs=2)
    found = one["logprobs"]
    assert by_ids["logprobs"] == found
    assert one["text"].startswith(text)
    assert none["text"] == text
    assert len(found["tokens"]) == len(token_ids) + 1
    assert {name: values[:-1] for name, values in found.items()} == none["logprobs"]
    assert "".join(found["tokens"][:-1]) == text
    assert found["text_offset"] == list(range(len(text) + 1))
    assert found["token_logprobs"][0] is None
    assert found["top_logprobs"][0] is None
    for place, token_id in enumerate(token_ids[1:], start=1):
        position = reported["prompt_logprobs"][place]
        assert position[str(token_id)]["logprob"] == found["token_logprobs"][place]
        spelled: dict[str, float] = {}
        for entry in position.values():  # of tokens with the same text the first is told
            spelled.setdefault(entry["decoded_token"], entry["logprob"])
        assert spelled == found["top_logprobs"][place]
    assert reported["prompt_logprobs"][0] is None


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
