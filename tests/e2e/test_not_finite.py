"""A checkpoint with a NaN in it: whoever meets it is told where, over HTTP as 500 or as the last
event of a stream; the others and the server stay well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_checkpoint import write_tiny_checkpoint

from .conftest import RunningServer, StartServer

POISON = 200
TEXT = "the model gave numbers that are not finite (NaN or infinity), first in: "
LENGTH = 200


def poisoned_model(directory: Path, tensor: str, index: tuple[int, ...]) -> Path:
    write_tiny_checkpoint(directory)
    tensors = load_file(directory / "model.safetensors")
    tensors[tensor][index] = np.nan
    save_file(tensors, directory / "model.safetensors")
    return directory


def healthy(number: int) -> dict[str, Any]:
    prompt = [(7 * i + number) % 150 for i in range(20 + number)]
    return {"prompt": prompt, "max_tokens": LENGTH, "min_tokens": LENGTH, "ignore_eos": True,
            "temperature": 0, "logprobs": 2, "stop_token_ids": [POISON],
            "return_token_ids": True}  # fmt: skip


def answer(reply: httpx.Response) -> dict[str, Any]:
    """The body, which must be JSON in the strict sense."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in {reply.text}")

    found: dict[str, Any] = json.loads(reply.text, parse_constant=refuse)
    return found


def error_of_stream(client: httpx.Client, path: str, body: dict[str, Any]) -> str:
    """The message of the last event."""
    reply = client.post(path, json={**body, "stream": True})
    events = [line.removeprefix("data: ") for line in reply.text.splitlines() if line]
    if events[-1] == "[DONE]":
        events.pop()
    return str(json.loads(events[-1])["error"]["message"])


@pytest.fixture(params=["cpu", "reference"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def start(start_server: StartServer, model: Path, backend: str) -> RunningServer:
    return start_server(engine={"model": str(model), "backend": backend, "max_model_len": 256})


@pytest.mark.sweep(1)
def test_a_poisoned_token(start_server: StartServer, tmp_path: Path, backend: str) -> None:
    model = poisoned_model(tmp_path / "model", "model.embed_tokens.weight", (POISON, 9))
    server = start(start_server, model, backend)
    told = [line for line in server.lines if "weights that are not finite" in line]
    assert len(told) == 1
    assert "in 1 of " in told[0]
    assert "the first is model.embed_tokens.weight" in told[0]
    with server.client() as client:
        alone = [answer(client.post("/v1/completions", json=healthy(n))) for n in range(3)]
        expected = [one["choices"][0]["token_ids"] for one in alone]
        shared = healthy(2)["prompt"]
        bad = [
            {"prompt": [POISON], "max_tokens": 3},
            {"prompt": [*shared, POISON], "max_tokens": 3, "logprobs": 1},
            {"prompt": [1, POISON, *range(100)], "max_tokens": 1, "echo": True, "logprobs": 1},
            {"prompt": [[1, 2], [3, POISON]], "max_tokens": 3},
        ]
        for _ in range(2):
            running = [_Streaming(server, healthy(n)) for n in range(3)]
            for body in bad:
                reply = client.post("/v1/completions", json=body)
                assert reply.status_code == 500
                assert answer(reply)["error"]["message"] == f"{TEXT}embed_tokens"
                assert error_of_stream(client, "/v1/completions", body) == f"{TEXT}embed_tokens"
            assert [one.tokens() for one in running] == expected
        assert client.get("/health").status_code == 200
        assert client.get("/ready").status_code == 200
    server.until_idle()


@pytest.mark.sweep(1)
def test_a_poisoned_layer(start_server: StartServer, tmp_path: Path, backend: str) -> None:
    tensor = "model.layers.1.mlp.down_proj.weight"
    server = start(start_server, poisoned_model(tmp_path / "model", tensor, (3, 5)), backend)
    message = f"{TEXT}layer 1, down"
    chat = {"messages": [{"role": "user", "content": "hello"}], "logprobs": True}
    with server.client() as client:
        for _ in range(3):
            reply = client.post("/v1/completions", json=healthy(1))
            assert (reply.status_code, answer(reply)["error"]["message"]) == (500, message)
            reply = client.post("/v1/chat/completions", json=chat)
            assert (reply.status_code, answer(reply)["error"]["message"]) == (500, message)
            assert error_of_stream(client, "/v1/chat/completions", chat) == message
        assert client.get("/health").status_code == 200
        assert client.get("/v1/models").status_code == 200
    server.until_idle()


class _Streaming:
    """A reply that is read while others fail."""

    def __init__(self, server: RunningServer, body: dict[str, Any]) -> None:
        self._client = httpx.Client(base_url=server.url, timeout=30)
        request = self._client.build_request(
            "POST", "/v1/completions", json={**body, "stream": True}
        )
        self._reply = self._client.send(request, stream=True)
        self._lines = self._reply.iter_lines()
        self._first = next(self._lines)

    def tokens(self) -> list[int]:
        """All of them."""
        found: list[int] = []
        for line in [self._first, *self._lines]:
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    found += choice.get("token_ids") or []
        self._client.close()
        return found
