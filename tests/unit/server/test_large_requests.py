"""Requests that ask for much: refused before any work, or worked on beside the event loop.

What is asserted is where the work was done and how much of it at once; how long the loop was kept
is printed (pytest -s), since a busy machine keeps it too.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from asgi_client import AsgiClient
from loop_lag import LoopLag

from quire.server.requests import prompts
from quire.server.work_pool import INLINE_SIZE, WorkPool

from .conftest import Harness, MakeHarness

WORDS = "some words, and more of them. "
MESSAGE = {"role": "user", "content": "hi"}


class Recorder:
    """What a pool was given: the names and sizes of all functions that it ran."""

    def __init__(self, pool: WorkPool) -> None:
        self.given: list[tuple[str, int]] = []
        self._run = pool.run
        pool.run = self.run  # type: ignore[method-assign]

    async def run(self, size: int, function: Any, *args: Any, **kwargs: Any) -> Any:
        self.given.append((function.__name__, size))
        return await self._run(size, function, *args, **kwargs)

    def on_threads(self) -> set[str]:
        """The functions that did not run on the event loop."""
        return {name for name, size in self.given if size > INLINE_SIZE}


@pytest.fixture
def harness(make_harness: MakeHarness) -> Iterator[Harness]:
    made = make_harness(max_reply_values=5000, max_tokenize_bytes=100_000, max_prompts=64)
    yield made
    made.context.pool.close()


REFUSED: list[tuple[str, dict[str, Any], str, tuple[str, ...]]] = [
    ("/tokenize", {"prompt": "a" * 100_001}, "prompt", ("100001", "max_tokenize_bytes 100000")),
    ("/tokenize", {"prompt": "é" * 50_001}, "prompt", ("100002", "max_tokenize_bytes 100000")),
    ("/tokenize", {"messages": [MESSAGE] * 9 + [{**MESSAGE, "content": "a" * 100_000}]},
     "messages", ("max_tokenize_bytes 100000",)),
    ("/v1/completions", {"prompt": "a" * 100_001}, "prompt", ("max_tokenize_bytes 100000",)),
    ("/v1/completions", {"prompt": ["a", "b" * 100_001]}, "prompt", ("max_tokenize_bytes",)),
    ("/v1/chat/completions", {"messages": [MESSAGE], "documents": [{"a": "x" * 100_000}]},
     "documents", ("max_tokenize_bytes 100000",)),
    ("/v1/chat/completions", {"messages": [MESSAGE], "chat_template_kwargs": {"a": "x" * 100_000}},
     "chat_template_kwargs", ("max_tokenize_bytes 100000",)),
    ("/v1/chat/completions", {"messages": [MESSAGE], "tool_choice": "none", "tools": [
        {"type": "function", "function": {"name": "f", "description": "x" * 100_000}}]},
     "tools", ("max_tokenize_bytes 100000",)),
    ("/v1/completions", {"prompt": ["a"] * 64, "n": 2}, "n",
     ("64 prompts x n 2 = 128", "max_prompts 64")),
    ("/v1/completions/render", {"prompt": ["a"] * 64, "n": 2}, "n", ("max_prompts 64",)),
    ("/v1/completions", {"prompt": "a" * 90, "n": 12, "echo": True, "logprobs": 20,
                         "max_tokens": 1}, "logprobs",
     ("n 12 x 90", "x 21", "= 24012 values", "max_reply_values 5000")),
    ("/v1/completions", {"prompt": "a", "n": 4, "logprobs": 5, "max_tokens": 400}, "logprobs",
     ("n 4 x 400", "x 6 = 9600", "max_reply_values 5000")),
    ("/v1/completions", {"prompt": "a" * 400, "prompt_logprobs": 20}, "prompt_logprobs",
     ("n 1 x 400", "x 21 = 8400",)),
    ("/v1/completions", {"prompt": "a" * 400, "echo": True, "n": 20}, "n", ("20 x 400",)),
    ("/v1/completions", {"prompt": "a" * 400, "return_token_ids": True, "n": 20}, "n",
     ("20 x 400",)),
    ("/v1/chat/completions", {"messages": [MESSAGE], "logprobs": True, "top_logprobs": 20, "n": 2},
     "top_logprobs", ("x 21", "max_reply_values 5000")),
    ("/detokenize", {"tokens": [1] * 200_000}, "tokens", ("200000", "max_model_len 512")),
    ("/v1/completions", {"prompt": [1] * 200_000}, "input_tokens",
     ("200000", "context length is 512 tokens")),
    ("/v1/completions", {"prompt": "a", "stop": ["x" * 1_200_000]}, "stop", ("max_field_bytes",)),
    ("/v1/completions", {"prompt": "a", "bad_words": [""] * 140_000}, "bad_words",
     ("max_json_values 131072",)),
    ("/v1/chat/completions", {"messages": [MESSAGE], "reasoning_effort": " - at `$" * 200_000},
     "reasoning_effort", ("max_field_bytes",)),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "name", "words"), REFUSED)
def test_too_much_is_refused_by_name_before_anything_runs(
    harness: Harness, path: str, body: dict[str, Any], name: str, words: tuple[str, ...]
) -> None:
    recorder = Recorder(harness.context.pool)
    reply = harness.post(path, {"temperature": 1.0, **body} if path != "/tokenize" else body)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, name), error
    assert all(word in error["message"] for word in words), error["message"]
    assert len(reply.content) < 3000
    assert harness.context.num_generating == 0
    assert "_encoded_whole" not in {function for function, _ in recorder.given}


LARGE: list[tuple[str, dict[str, Any], set[str]]] = [
    ("/tokenize", {"prompt": WORDS * 3000}, {"_decode_large", "encode", "_tokenized"}),
    ("/tokenize", {"prompt": WORDS * 3000, "return_token_strs": True}, {"encode", "_tokenized"}),
    ("/v1/completions", {"prompt": [WORDS * 16] * 60, "max_tokens": 1}, {"_prompts"}),
    ("/v1/completions", {"prompt": [[7] * 500] * 60, "max_tokens": 1},
     {"_decode_large", "_prompts", "inputs"}),
    ("/v1/completions/render", {"prompt": [WORDS * 16] * 60}, {"_rendered_list"}),
    ("/v1/chat/completions", {"messages": [{"role": "u", "content": WORDS}] * 400},
     {"_check_template_fields", "prompt_ids"}),
    ("/v1/completions", {"prompt": "a" * 20, "n": 60, "max_tokens": 10, "logprobs": 5,
                         "temperature": 1.0}, {"_encoded_whole"}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "functions"), LARGE)
async def test_large_work_goes_through_the_pool(
    harness: Harness, path: str, body: dict[str, Any], functions: set[str]
) -> None:
    recorder = Recorder(harness.context.pool)

    async with harness.client() as client:
        data = json.dumps(body).encode()
        async with LoopLag() as lag:
            reply = await client.post(
                path, content=data, headers={"content-type": "application/json"}
            )
        print(f"\n{path}: {reply.status_code}, longest gap {1000 * lag.longest_s:.0f} ms")
        assert functions <= recorder.on_threads(), recorder.given


def test_small_requests_touch_no_thread(harness: Harness) -> None:
    recorder = Recorder(harness.context.pool)
    for path, body in (
        ("/v1/completions", {"prompt": "abc" * 100, "max_tokens": 8, "logprobs": 2}),
        ("/v1/completions", {"prompt": "abc", "max_tokens": 8, "stream": True}),
        ("/v1/chat/completions", {"messages": [MESSAGE], "max_tokens": 8}),
        ("/tokenize", {"prompt": "abc"}),
    ):
        assert harness.post(path, body).status_code == 200
    assert not recorder.on_threads()


LONG_LISTS: list[dict[str, Any]] = [
    {"logit_bias": {str(token_id % 90): 1 for token_id in range(200)}},
    {"allowed_token_ids": [token_id % 90 for token_id in range(200)]},
    {"bad_words": [f"a{number}" for number in range(200)]},
    {"stop_token_ids": list(range(200))},
    {"logprobs": 1, "logprob_token_ids": [token_id % 90 for token_id in range(200)]},
]


@pytest.mark.parametrize("lists", LONG_LISTS, ids=lambda lists: list(lists)[-1])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/completions/render"])
def test_long_lists_of_parameters_are_checked_on_threads(
    harness: Harness, path: str, lists: dict[str, Any]
) -> None:
    given = lists[list(lists)[-1]]
    recorder = Recorder(harness.context.pool)
    harness.post(path, {"prompt": "abc", "max_tokens": 2, **lists})
    sizes = dict(recorder.given)
    assert sizes["sampling_params"] == 8 * len(given)
    assert ("sampling_params" in recorder.on_threads()) is (8 * len(given) > INLINE_SIZE)
    for name in {"inputs", "_rendered_list"} & {*sizes}:  # the rest may have been refused
        assert sizes[name] >= 8 * len({*given})


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/completions/render"])
def test_long_lists_for_many_sequences_are_refused(
    harness: Harness, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "_MAX_LIST_ENTRIES", 1000)
    body = {"logit_bias": {str(token_id): 1 for token_id in range(50)}, "max_tokens": 2, "n": 4}
    assert harness.post(path, {"prompt": ["abc"] * 5, **body}).status_code == 200
    reply = harness.post(path, {"prompt": ["abc"] * 6, **body})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["param"] == "logit_bias"
    for part in ("50 entries", "6 prompts x n 4", "1200 entries", "(1000)"):
        assert part in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_large_reply_is_that_of_small_ones(make_harness: MakeHarness, stream: bool) -> None:
    """Written in pieces and on threads, it says what the choices say by themselves."""
    body = {
        "prompt": "ab" * 40, "max_tokens": 20, "echo": True, "logprobs": 20, "temperature": 1.0,
        "return_token_ids": True, "stream": stream,
    }  # fmt: skip
    harness = make_harness()
    recorder = Recorder(harness.context.pool)
    one, many = (
        _choices(harness.post("/v1/completions", {**body, "n": n}).text, stream) for n in (1, 12)
    )
    assert {"events" if stream else "_encoded_whole"} <= recorder.on_threads()
    assert len(many) == 12
    for choice in many:
        assert len(choice["logprobs"]["tokens"]) == 100
        assert choice["token_ids"] == one[0]["token_ids"]
        assert choice["logprobs"] == one[0]["logprobs"]
        assert choice["text"] == one[0]["text"]
        assert choice["prompt_token_ids"] == one[0]["prompt_token_ids"]


def _choices(text: str, stream: bool) -> list[dict[str, Any]]:
    if not stream:
        return list(json.loads(text)["choices"])
    found: dict[int, dict[str, Any]] = {}
    for line in text.split("\n\n"):
        if not line.startswith("data: {"):
            continue
        for new in json.loads(line[6:])["choices"]:
            old = found.setdefault(new["index"], new)
            if old is new:
                continue
            old["text"] += new["text"]
            old["token_ids"] += new["token_ids"]
            for name, values in new["logprobs"].items():
                old["logprobs"][name] += values
    return [found[index] for index in sorted(found)]


async def test_large_requests_wait_for_each_other_and_nobody_for_them(
    make_harness: MakeHarness,
) -> None:
    harness = make_harness(max_large_requests_waiting=2)
    text = WORDS * 10_000
    tokenizer = harness.model.tokenizer()
    encode_pieces, num_at_once, most_at_once = tokenizer.encode_pieces, 0, 0

    def noted(*args: Any, **options: Any) -> Iterator[list[int]]:
        nonlocal num_at_once, most_at_once
        num_at_once += 1
        most_at_once = max(most_at_once, num_at_once)
        yield from encode_pieces(*args, **options)
        num_at_once -= 1

    tokenizer.encode_pieces = noted  # type: ignore[method-assign]

    async with harness.client() as client:
        large = [
            asyncio.ensure_future(client.post("/tokenize", json={"prompt": text}, timeout=60))
            for _ in range(8)
        ]
        await asyncio.sleep(0.05)
        while not all(each.done() for each in large):
            small = await client.post("/tokenize", json={"prompt": "abc"})
            assert small.json()["count"] == 3
            await asyncio.sleep(0.01)
        replies = [each.result() for each in large]
        statuses = sorted(reply.status_code for reply in replies)
        assert statuses[0] == 200
        assert set(statuses) <= {200, 503}
        for reply in replies:
            if reply.status_code == 503:
                assert "max_large_requests_waiting 2" in reply.json()["error"]["message"]
                assert int(reply.headers["retry-after"]) >= 1
        assert most_at_once == 1


async def test_a_client_that_leaves_ends_the_work_for_it(harness: Harness) -> None:
    """The tokenizing of a prompt that nobody waits for any longer does not go on."""
    pool = harness.context.pool
    tokenizer = harness.model.tokenizer()
    slow = tokenizer.encode_pieces
    num_pieces = 0

    def encode_slowly(text: str, **options: Any) -> Iterator[list[int]]:
        nonlocal num_pieces
        for piece in slow(text, **options, size=100):
            num_pieces += 1
            time.sleep(0.01)
            yield piece

    tokenizer.encode_pieces = encode_slowly  # type: ignore[method-assign]

    async with harness.client():
        client = AsgiClient(harness.app)
        asyncio.get_running_loop().call_later(0.3, client.is_gone.set)
        body = {"prompt": WORDS * 3000, "zz": " " * 300_000}
        await asyncio.wait_for(client.post("/tokenize", body), 60)
        before = num_pieces
        await asyncio.sleep(0.1)
        assert num_pieces <= before + 2
        assert num_pieces < 400
        assert not harness.context.tasks
        await pool.run(INLINE_SIZE + 1, time.sleep, 0)


async def test_the_probe_sees_a_loop_that_is_kept() -> None:
    async with LoopLag() as lag:
        await asyncio.sleep(0.02)
        time.sleep(0.05)
        await asyncio.sleep(0.02)
    lag = lag
    assert lag.longest_s >= 0.04
    assert max(gap.seconds for gap in lag.gaps) == lag.longest_s
