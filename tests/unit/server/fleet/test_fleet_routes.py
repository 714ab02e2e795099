"""Requests of a server with several models: what they load, what they see meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_fleet import FakeLoader, make_fleet

from quire.server.fleet import use
from server.conftest import Harness

USER = [{"role": "user", "content": "hi"}]
CHAT = {"messages": USER, "max_tokens": 4}


@pytest.fixture
def several(tiny_model: Path, make_harness: Any) -> tuple[Harness, FakeLoader]:
    from quire.server.app import build_app

    context, loader = make_fleet(tiny_model, {"a": 60, "b": 60, "huge": 200})
    loader.chat = make_harness().model.chat
    return Harness(context, build_app(context, ())), loader


@asynccontextmanager
async def client_of(several: tuple[Harness, FakeLoader]) -> AsyncIterator[httpx.AsyncClient]:
    harness, _ = several
    async with harness.client() as client:
        try:
            yield client
        finally:
            await harness.context.fleet.close()


async def test_a_request_loads_its_model_and_gives_it_back(several: Any) -> None:
    harness, loader = several

    async with client_of(several) as client:
        for name in ("a", "b", "a", "a:latest", None):
            body = {**CHAT, **({} if name is None else {"model": name})}
            reply = await client.post("/v1/chat/completions", json=body)
            assert reply.status_code == 200, reply.text
        assert loader.loads == ["a", "b", "a"]
        assert loader.unloads == ["a", "b"]
        for path, fields in (
            ("/v1/completions", {"prompt": "x", "max_tokens": 1}), ("/tokenize", {"prompt": "x"}),
            ("/api/chat", {"messages": USER, "stream": False}),
            ("/v1/responses", {"input": "x", "max_output_tokens": 16}),
            ("/v1/messages", {"messages": USER, "max_tokens": 1}),
            ("/invocations", CHAT),
        ):  # fmt: skip
            reply = await client.post(path, json={"model": "b", **fields})
            assert reply.status_code == 200, (path, reply.text)
            assert [model.num_users for model in harness.context.models] == [0, 0, 0], path
        for body in ({**CHAT, "n": -1}, {"messages": 7}, {**CHAT, "model": "nobody"}):
            assert (await client.post("/v1/chat/completions", json=body)).status_code in (400, 404)
        assert [model.num_users for model in harness.context.models] == [0, 0, 0]


async def test_the_list_shows_states_and_a_model_that_does_not_fit(several: Any) -> None:
    async with client_of(several) as client:
        reply = await client.post("/v1/models/load", json={"model": "a", "keep_alive": "10m"})
        assert reply.json()["status"]["value"] == "loaded"
        listed = (await client.get("/v1/models")).json()["data"]
        cards = {card["id"]: card["status"] for card in listed}
        assert {name: card["value"] for name, card in cards.items()} == {
            "a": "loaded", "b": "unloaded", "huge": "unloaded",
        }  # fmt: skip
        assert (cards["a"]["keep_alive"], cards["huge"]["num_bytes"]) == (600.0, 200)
        assert 500 < cards["a"]["expires_in"] <= 600
        names = [one["name"] for one in (await client.get("/api/ps")).json()["models"]]
        assert names == ["a"]
        reply = await client.post("/v1/chat/completions", json={**CHAT, "model": "huge"})
        assert reply.status_code == 503
        assert "needs 200 B, and 100 B of 100 B" in reply.json()["error"]["message"]
        assert reply.headers["retry-after"]
        reply = await client.post("/models/unload", json={"model": "a"})
        assert reply.json()["status"]["value"] == "unloaded"
        assert (await client.get("/api/ps")).json()["models"] == []
        text = (await client.get("/metrics")).text
        assert 'quire:model_loads_total{model_name="a"} 1.0' in text
        assert 'quire:model_loaded{model_name="a"} 0.0' in text


async def test_the_page_knows_a_model_before_it_is_loaded(several: Any) -> None:
    async with client_of(several) as client:
        shown = [(await client.get("/quire/live?model=a")).json()]
        await client.post("/v1/models/load", json={"model": "a"})
        shown.append((await client.get("/quire/live?model=a")).json())
        assert [one["state"] for one in shown] == ["unloaded", "ready"]
        assert ["requests" in one for one in shown] == [False, True]
        for fact in ("is_demo", "takes_images", "transcribes", "scoring", "sampling"):
            assert shown[0][fact] == shown[1][fact]


async def test_ollama_loads_and_unloads_with_keep_alive(several: Any) -> None:
    _, loader = several

    async with client_of(several) as client:
        reply = await client.post("/api/generate", json={"model": "a", "keep_alive": -1})
        assert (reply.json()["done_reason"], loader.loads) == ("load", ["a"])
        assert "x-quire-ignored-fields" not in reply.headers
        [ps] = (await client.get("/api/ps")).json()["models"]
        assert ps["expires_at"] > "2100"
        await client.post("/api/chat", json={"model": "a", "messages": [], "keep_alive": "5m"})
        [ps] = (await client.get("/api/ps")).json()["models"]
        assert ps["expires_at"] < "2100"
        reply = await client.post("/api/generate", json={"model": "a", "keep_alive": 0})
        assert (reply.json()["done_reason"], loader.unloads) == ("unload", ["a"])
        reply = await client.post("/api/generate", json={"model": "b", "keep_alive": 0})
        assert (reply.json()["done_reason"], loader.loads) == ("unload", ["a"])
        for odd in ("soon", "-soon", "m", "", "1h 30", "nan"):
            reply = await client.post("/api/generate", json={"model": "a", "keep_alive": odd})
            assert reply.status_code == 400, odd
            assert "keep_alive" in reply.json()["error"]
        for odd in (1e300, "999999999999w", -1e300):
            reply = await client.post("/api/generate", json={"model": "a", "keep_alive": odd})
            assert reply.status_code == 200, odd
            [ps] = (await client.get("/api/ps")).json()["models"]
            assert ps["expires_at"] > "2100"


async def test_a_keep_alive_of_zero_holds_until_the_model_is_unloaded(several: Any) -> None:
    harness, loader = several

    async with client_of(several) as client:
        watching = asyncio.ensure_future(harness.context.fleet.watch())
        for name in "ba":  # one that is not loaded, and one that is
            await client.post("/v1/models/load", json={"model": "a"})
            await client.post("/api/generate", json={"model": name, "keep_alive": 0})
        await client.post("/v1/models/load", json={"model": "b"})
        await client.get("/api/ps")
        [ps] = (await client.get("/api/ps")).json()["models"]
        assert (ps["name"], ps["expires_at"] > "2100") == ("b", True)
        fleet, model = harness.context.fleet, harness.context.models[1]
        await fleet.acquire(model)
        reply = await client.post("/api/generate", json={"model": "b", "keep_alive": "0m0s"})
        assert (reply.json()["done_reason"], loader.unloads) == ("unload", ["a"])
        fleet.release(model)
        while loader.unloads != ["a", "b"]:
            await asyncio.sleep(0.01)
        watching.cancel()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_does_not_wait_for_a_model_when_its_client_has_gone(
    several: Any, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    harness, loader = several
    monkeypatch.setattr(use, "_PATIENCE_S", 0.02)

    async with client_of(several):
        loader.gate = asyncio.Event()
        body = json.dumps({**CHAT, "model": "a", "stream": stream}).encode()
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        gone = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            assert message.get("status", 200) == 200

        scope = {
            "type": "http", "method": "POST", "path": "/v1/chat/completions", "query_string": b"",
            "headers": [(b"host", b"quire"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1), "scheme": "http", "raw_path": b"/v1/chat/completions",
        }  # fmt: skip
        request = asyncio.ensure_future(harness.app(scope, receive, send))
        member = harness.context.fleet.members[0]
        while not member.waiting:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        gone.set()
        await asyncio.wait_for(request, 5)
        assert (member.waiting, member.state) == ([], "loading")
        loader.gate.set()
        while member.state != "loaded":
            await asyncio.sleep(0.01)
        assert member.model.num_users == 0


@pytest.mark.parametrize(
    ("path", "body", "sign", "is_error"),
    [
        ("/v1/chat/completions", {**CHAT, "stream": True}, ": loading the model", False),
        ("/v1/chat/completions", {**CHAT, "stream": True, "n": -1}, ": loading the model", True),
        ("/v1/messages", {**CHAT, "stream": True}, ": loading the model", False),
        ("/v1/messages", {"messages": USER, "max_tokens": -1, "stream": True},
         ": loading the model", True),
        ("/api/chat", {"messages": USER}, "", False),
        ("/api/chat", {"messages": USER, "options": {"nope": 1}}, "", True),
    ],
)  # fmt: skip
async def test_a_stream_shows_life_while_its_model_loads(
    several: Any, monkeypatch: pytest.MonkeyPatch, path: str, body: Any, sign: str, is_error: bool
) -> None:
    _, loader = several
    monkeypatch.setattr(use, "_PATIENCE_S", 0.02)
    monkeypatch.setattr(use, "_COMMENT_S", 0.02)

    async with client_of(several) as client:
        loader.gate = asyncio.Event()
        asyncio.get_running_loop().call_later(0.2, loader.gate.set)
        reply = await client.post(path, json={**body, "model": "b"})
        lines = reply.text.split("\n")
        assert reply.status_code == 200
        if sign:
            assert lines[0] == sign
            assert lines.count(sign) > 1
        else:
            assert lines[0].startswith("   ")
            assert "" not in lines[:-1]
        end = [line for line in lines if line and not line.startswith(":")]
        if not is_error:
            assert "error" not in end[-1]
        elif path == "/api/chat":
            assert "nope" in json.loads(end[-1])["error"]
        else:
            assert json.loads(end[-1].removeprefix("data: "))["error"]["message"]
            assert ("event: error" in end) == (path == "/v1/messages")


async def test_a_load_that_fails_at_once_keeps_its_status(several: Any) -> None:
    _, loader = several

    async with client_of(several) as client:
        loader.failures["b"] = "it is damaged"
        body = {**CHAT, "model": "b", "stream": True}
        reply = await client.post("/v1/chat/completions", json=body)
        assert reply.status_code == 503
        assert "it is damaged" in reply.json()["error"]["message"]


def test_the_routes_exist_only_with_several_models(harness: Harness) -> None:
    reply = harness.post("/v1/models/load", {"model": "tiny"})
    assert reply.status_code == 404
    assert "--models" in reply.json()["error"]["message"]
