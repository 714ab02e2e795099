"""Random requests, streamed and not: the same text, tokens, log-probabilities and ends."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from .conftest import RunningServer
from .test_accounting import streamed

NUM_REQUESTS = 40
FIELDS: dict[str, list[Any]] = {
    "prompt": ["count", "é漢字🙂", [64, 65], ["one", "two"], [195]],
    "n": [1, 2],
    "temperature": [0.5, 2],
    "max_tokens": [1, 7, 30],
    "min_tokens": [0, 1],
    "stop": [None, "e", ["a", "\n", "1"], ["é", "th"]],
    "stop_token_ids": [None, [*range(0, 250, 25)], [5]],
    "include_stop_str_in_output": [False, True],
    "ignore_eos": [False, True],
    "skip_special_tokens": [False, True],
    "logprobs": [None, 0, 3],
    "echo": [False, True],
    "return_tokens_as_token_ids": [None, True],
    "truncate_prompt_tokens": [None, 1, -1],
    "truncation_side": [None, "left", "right"],
    "stream_interval": [None, 4],
    "allowed_token_ids": [None, [*range(60, 100)], [195, 169, 10, 64]],
}


def body_of(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    drawn = {name: values[random.integers(len(values))] for name, values in FIELDS.items()}
    given = {name: value for name, value in drawn.items() if value is not None}
    return {**given, "seed": seed, "return_token_ids": True}


def whole_and_streamed(client: httpx.Client, body: dict[str, Any]) -> tuple[Any, Any]:
    reply = client.post("/v1/completions", json=body)
    assert reply.status_code == 200, (body, reply.text)
    return reply.json(), streamed(client, "/v1/completions", body)


@pytest.mark.parametrize("part", range(4))
def test_completions(server: RunningServer, part: int) -> None:
    with server.client() as client:
        for seed in range(part, NUM_REQUESTS, 4):
            body = body_of(seed)
            whole, stream = whole_and_streamed(client, body)
            assert len(stream["choices"]) == len(whole["choices"])
            for choice, merged in zip(whole["choices"], stream["choices"], strict=True):
                check_choice(body, choice)
                assert merged["text"] == choice["text"], body
                assert merged["token_ids"] == choice["token_ids"], body
                assert merged["logprobs"] == (choice["logprobs"] or {}), body
                assert merged["ends"] == [(choice["finish_reason"], choice["stop_reason"])], body
            counts = [name for name in whole["usage"] if "details" not in name]
            assert [stream["usage"][name] for name in counts] == [
                whole["usage"][name] for name in counts
            ]


def check_choice(body: dict[str, Any], choice: dict[str, Any]) -> None:
    """What the lists of log-probabilities say of each other and of the text."""
    assert len(choice["token_ids"]) <= body["max_tokens"]
    if (logprobs := choice["logprobs"]) is None:
        assert "logprobs" not in body
        return
    num_echoed = len(choice["prompt_token_ids"]) if body["echo"] else 0
    tokens, offsets = logprobs["tokens"], logprobs["text_offset"]
    assert len(tokens) == num_echoed + len(choice["token_ids"])
    for place, token in enumerate(tokens[:-1]):
        assert offsets[place + 1] == offsets[place] + len(token)
    if body.get("return_tokens_as_token_ids"):
        ids = [*(choice["prompt_token_ids"] if body["echo"] else []), *choice["token_ids"]]
        assert tokens == [f"token_id:{token_id}" for token_id in ids]
    for place, best in enumerate(logprobs["top_logprobs"]):
        if place == 0 and body["echo"]:
            assert (best, logprobs["token_logprobs"][0]) == (None, None)
            continue
        assert best[tokens[place]] >= logprobs["token_logprobs"][place]
        assert len(best) <= body["logprobs"] + 1
