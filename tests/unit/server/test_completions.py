"""What the generating endpoints answer, byte by byte: the fake core counts up from the prompt.
And `best_of`: more samples than the reply shows, chosen by their log-probability per token."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fake_core import FakeCore

from quire.config.records import ParallelConfig
from quire.core.client import health_of
from quire.core.step_watch import StepObservation
from quire.outputs import CompletionOutput, FlatLogprobs, RequestOutput
from quire.protocol import EngineCoreRequest
from quire.server.apis.completions.writing import best_of

from .conftest import Harness, MakeHarness


def events_of(reply: httpx.Response) -> list[Any]:
    lines = [line[6:] for line in reply.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def ids(harness: Harness, text: str) -> list[int]:
    tokens = harness.post("/tokenize", {"prompt": text}).json()["tokens"]
    assert len(tokens) == len(text.encode())
    return tokens


def text_of(harness: Harness, tokens: list[int]) -> str:
    return harness.post("/detokenize", {"tokens": tokens}).json()["prompt"]


def test_a_completion_counts_up(harness: Harness) -> None:
    (last,) = ids(harness, "A")
    reply = harness.post("/v1/completions", {"prompt": "A", "max_tokens": 3, "model": "alias"})
    body = reply.json()
    assert reply.status_code == 200
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["model"] == "alias"
    choice = body["choices"][0]
    assert choice["text"] == text_of(harness, [last + 1, last + 2, last + 3]) == "BCD"
    assert (choice["index"], choice["finish_reason"], choice["stop_reason"]) == (0, "length", None)
    assert body["usage"] == {
        "prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip


def test_echo_n_and_several_prompts_are_indexed_in_order(harness: Harness) -> None:
    body = {"prompt": ["A", "K"], "max_tokens": 2, "n": 2, "echo": True}
    reply = harness.post("/v1/completions", body).json()
    texts = [(choice["index"], choice["text"]) for choice in reply["choices"]]
    assert texts == [(0, "ABC"), (1, "ABC"), (2, "KLM"), (3, "KLM")]
    assert reply["usage"]["prompt_tokens"] == 2
    assert reply["usage"]["completion_tokens"] == 8
    nothing = harness.post("/v1/completions", {**body, "max_tokens": 0}).json()
    assert [choice["text"] for choice in nothing["choices"]] == ["A", "A", "K", "K"]
    assert nothing["usage"]["completion_tokens"] == 4  # one each, counted and not shown
    stream = harness.post("/v1/completions", {**body, "max_tokens": 0, "stream": True})
    assert [event["choices"][0]["text"] for event in events_of(stream)] == ["A", "A", "K", "K"]


def test_a_stream_ends_with_usage_and_done(harness: Harness) -> None:
    body = {
        "prompt": "A", "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True},
        "include_metrics": True,
    }  # fmt: skip
    reply = harness.post("/v1/completions", body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = events_of(reply)
    *parts, last = events
    assert "".join(part["choices"][0]["text"] for part in parts) == "BCD"
    assert all(part["usage"] is None for part in parts)
    assert parts[-1]["choices"][0]["finish_reason"] == "length"
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 4
    assert last["metrics"]["time_to_first_token_ms"] > 0
    assert len({event["id"] for event in events}) == 1


def test_stop_strings_and_tokens_end_a_reply(harness: Harness) -> None:
    by_string = harness.post("/v1/completions", {"prompt": "A", "max_tokens": 9, "stop": "E"})
    choice = by_string.json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("BCD", "stop", "E")
    (e,) = ids(harness, "E")
    by_token = harness.post(
        "/v1/completions", {"prompt": "A", "max_tokens": 9, "stop_token_ids": [e]}
    )
    choice = by_token.json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("BCD", "stop", e)


def test_a_chat_is_rendered_and_answered(harness: Harness) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 2}
    reply = harness.post(
        "/v1/chat/completions", {**body, "return_prompt_text": True, "return_token_ids": True}
    ).json()
    (newline,) = ids(harness, "\n")  # the prompt's last token
    assert reply["prompt_text"].endswith("<|im_start|>assistant\n")
    assert reply["choices"][0]["token_ids"] == [newline + 1, newline + 2]
    assert reply["choices"][0]["message"]["role"] == "assistant"
    events = events_of(harness.post("/v1/chat/completions", {**body, "stream": True}))
    first = events[0]["choices"][0]["delta"]
    assert first == {"role": "assistant", "content": ""} or first["role"] == "assistant"
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert text == reply["choices"][0]["message"]["content"]


def test_parts_tools_and_echo_of_a_chat(harness: Harness) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": part} for part in "ab"]},
            {"role": "assistant", "content": "So"},
        ],
        "tools": [tool], "tool_choice": "none", "max_tokens": 1, "echo": True,
        "add_generation_prompt": False, "continue_final_message": True,
    }  # fmt: skip
    shown = harness.post("/v1/chat/completions/render", body).json()
    assert "a\nb" in shown["prompt"]
    assert shown["prompt"].endswith("So")
    reply = harness.post("/v1/chat/completions", body).json()
    assert reply["choices"][0]["message"]["content"].startswith("So")
    no_tools = {**body, "continue_final_message": False}
    assert '"name": "f"' in harness.post("/v1/chat/completions/render", no_tools).json()["prompt"]


def test_logprobs_in_both_shapes(harness: Harness) -> None:
    text = harness.post("/v1/completions", {"prompt": "A", "max_tokens": 2, "logprobs": 2}).json()
    logprobs = text["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["B", "C"]
    assert logprobs["text_offset"] == [0, 1]
    assert logprobs["token_logprobs"] == [0.0, 0.0]
    assert [len(best) for best in logprobs["top_logprobs"]] == [3, 3]
    as_ids = {"prompt": "A", "max_tokens": 1, "logprobs": 0, "return_tokens_as_token_ids": True}
    (a,) = ids(harness, "A")
    found = harness.post("/v1/completions", as_ids).json()["choices"][0]["logprobs"]
    assert found["tokens"] == [f"token_id:{a + 1}"]
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "logprobs": True}
    (position,) = harness.post("/v1/chat/completions", {**chat, "top_logprobs": 2}).json()[
        "choices"
    ][0]["logprobs"]["content"]
    assert len(position["top_logprobs"]) == 2
    assert position["bytes"] is not None


def test_a_failing_request_is_a_500_and_the_next_one_works(harness: Harness) -> None:
    from fake_core import REFUSE

    failed = harness.post("/v1/completions", {"prompt": [REFUSE]})
    assert failed.status_code == 500
    assert failed.json()["error"]["message"] == "this prompt is refused"
    stream = harness.post("/v1/completions", {"prompt": [REFUSE], "stream": True})
    assert (stream.status_code, stream.json()["error"]["code"]) == (500, 500)
    assert harness.post("/v1/completions", {"prompt": "A"}).status_code == 200


def test_a_deadline_ends_a_request(harness: Harness) -> None:
    body = {"prompt": "A", "max_tokens": 400}
    reply = harness.post("/v1/completions", body, headers={"X-Request-Timeout": "0.05"})
    assert reply.status_code == 503
    assert "deadline of 0.05 s" in reply.json()["error"]["message"]
    assert harness.context.num_generating == 0
    wrong = harness.post("/v1/completions", body, headers={"X-Request-Timeout": "soon"})
    assert wrong.status_code == 400


def test_a_full_queue_is_503_with_retry_after(make_harness: MakeHarness) -> None:
    harness = make_harness(scheduler={"max_num_seqs": 1, "max_num_queued_reqs": 2})
    reply = harness.post("/v1/completions", {"prompt": ["A"] * 4})
    assert reply.status_code == 503
    assert int(reply.headers["retry-after"]) >= 1
    assert harness.post("/v1/completions", {"prompt": ["A"] * 3}).status_code == 200
    text = harness.request("GET", "/metrics").text
    assert 'reason="max_num_queued_reqs"} 1.0' in text


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_nothing_generates_while_loading_or_draining(make_harness: MakeHarness, path: str) -> None:
    loading = make_harness(is_loaded=False)
    body = {"prompt": "A", "messages": [{"role": "user", "content": "A"}]}
    assert loading.post(path, body).status_code == 503
    assert loading.request("GET", "/ready").json()["status"] == "loading"
    assert loading.request("GET", "/live").status_code == 200
    draining = make_harness()
    draining.context.is_draining = True
    reply = draining.post(path, body)
    assert reply.status_code == 503
    assert "retry-after" in reply.headers
    assert draining.request("GET", "/ready").status_code == 503
    assert draining.request("GET", "/health").status_code == 200


async def test_a_stuck_engine_is_told_within_two_seconds(harness: Harness) -> None:
    from fake_core import HANG

    async with harness.client() as client:
        begin = time.monotonic()
        reply = await client.post("/v1/completions", json={"prompt": [HANG]})
        assert time.monotonic() - begin < 20
        assert reply.status_code == 503
        assert "a step is stuck" in reply.json()["error"]["message"]
        ready = await client.get("/ready")
        assert ready.status_code == 503
        assert ready.json()["status"] == "dead"
        assert (await client.get("/health")).status_code == 503


def test_an_engine_without_a_core_is_not_ready_and_not_dead(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalled = health_of(StepObservation(turn_age_s=9.0, still_s=8.0), step_timeout_s=60.0)
    monkeypatch.setattr(harness.model.engine, "health", lambda: stalled)
    ready = harness.request("GET", "/ready")
    assert ready.status_code == 503
    assert ready.json() == {"status": "stalled", "reason": "no step has advanced for 8.0 s"}
    assert harness.request("GET", "/health").status_code == 200
    busy = health_of(StepObservation(turn_age_s=9.0, still_s=0.2), step_timeout_s=60.0)
    monkeypatch.setattr(harness.model.engine, "health", lambda: busy)
    assert harness.request("GET", "/ready").status_code == 200


def test_a_header_chooses_the_engine(make_harness: MakeHarness) -> None:
    ranks: list[int | None] = []

    class Core(FakeCore):
        def add_request(self, request: EngineCoreRequest) -> None:
            ranks.append(request.data_parallel_rank)
            super().add_request(request)

    harness = make_harness(core=Core)
    engine, body = harness.model.engine, {"prompt": "Hi", "max_tokens": 2, "n": 2}
    engine.config = replace(engine.config, parallel=ParallelConfig(data_parallel_size=3))
    for header in ({"X-data-parallel-rank": "2"}, {"X-data-parallel-rank": "0"}, {}):
        assert harness.post("/v1/completions", body, headers=header).status_code == 200
    assert ranks == [2, 2, 0, 0, None, None]
    for value in ("two", "", "1_0", "1.0", "0x1", "+1", "9" * 5000):
        wrong = harness.post("/v1/completions", body, headers={"X-data-parallel-rank": value})
        assert wrong.status_code == 400
        assert wrong.json()["error"]["param"] == "X-data-parallel-rank"
        assert "must be the number of an engine, from 0 to 2" in wrong.json()["error"]["message"]
    wrong = harness.post("/v1/completions", body, headers={"X-data-parallel-rank": "3"})
    assert wrong.status_code == 400
    assert "data_parallel_rank 3 is out of range [0, 3)" in wrong.json()["error"]["message"]


def output_of(*samples: tuple[float | None, int]) -> RequestOutput:
    """Of samples with these sums and lengths."""
    outputs = [
        CompletionOutput(index, f"{index}", [7] * length, total, FlatLogprobs())
        for index, (total, length) in enumerate(samples)
    ]
    return RequestOutput("r", None, [1], None, outputs, True)


def test_the_best_by_mean_are_shown_in_order() -> None:
    final = output_of((-4.0, 2), (-3.0, 3), (-9.0, 3), (-5.0, 10), (0.0, 0))
    shown = best_of(final, 2, shows_logprobs=False)
    assert [(one.index, one.text) for one in shown.outputs] == [(0, "3"), (1, "1")]
    assert all(one.logprobs is None for one in shown.outputs)
    assert [one.index for one in final.outputs] == [0, 1, 2, 3, 4]
    kept = best_of(final, 2, shows_logprobs=True)
    assert all(isinstance(one.logprobs, FlatLogprobs) for one in kept.outputs)
    assert best_of(final, 5, shows_logprobs=False) is final


def test_all_samples_are_generated_and_counted(harness: Harness) -> None:
    body = {"prompt": ["A", "BC"], "max_tokens": 5, "n": 2, "best_of": 4}
    reply = harness.post("/v1/completions", body).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert all(choice["logprobs"] is None for choice in reply["choices"])
    assert reply["usage"]["completion_tokens"] == 2 * 4 * 5
    with_logprobs = harness.post("/v1/completions", {**body, "logprobs": 1}).json()
    assert all(len(one["logprobs"]["tokens"]) == 5 for one in with_logprobs["choices"])


def test_its_bound_is_that_of_n(make_harness: MakeHarness) -> None:
    harness = make_harness(max_prompts=6)
    reply = harness.post("/v1/completions", {"prompt": ["A", "B"], "best_of": 4})
    assert reply.status_code == 400
    assert "2 prompts x n 4 = 8 are more than" in reply.text


@pytest.mark.parametrize("value", [1, None])
def test_one_of_one_is_nothing_special(harness: Harness, value: int | None) -> None:
    body = {"prompt": "A", "max_tokens": 2, "best_of": value, "temperature": 0, "stream": True}
    assert harness.post("/v1/completions", body).status_code == 200
