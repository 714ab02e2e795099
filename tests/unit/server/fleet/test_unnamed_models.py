"""Requests that name no model: of several, the first that can answer the route does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_fleet import FakeLoader, make_fleet

from quire.config.pooling import PoolingConfig
from quire.images.config import ImagesConfig
from quire.server.all_endpoints import ENDPOINTS
from quire.server.app import build_app
from quire.server.fleet.choice import first_that_gives
from server.conftest import Harness

POOLING: dict[str, dict[str, Any]] = {
    "chat": {},
    "colbert": {"task": "token_embed", "is_sparse": False},
    "embedder": {"task": "embed"},
    "splade": {"task": "token_classify", "is_sparse": True},
    "classifier": {"task": "classify", "width": 3},
    "reranker": {"task": "classify", "width": 1},
    "embedder2": {"task": "embed"},
}
USER = [{"role": "user", "content": "hi"}]
PAIR = {"query": "x", "documents": ["y"]}
ROUTES: list[tuple[str, dict[str, Any], str]] = [
    ("/embed", {"inputs": "x"}, "embedder"),
    ("/embed_all", {"inputs": "x"}, "colbert"),
    ("/embed_sparse", {"inputs": "x"}, "splade"),
    ("/", {"inputs": "x"}, "embedder"),
    ("/predict", {"inputs": "x"}, "classifier"),
    ("/similarity", {"inputs": {"source_sentence": "x", "sentences": ["y"]}}, "embedder"),
    ("/rerank", {"query": "x", "texts": ["y"]}, "reranker"),
    ("/rerank", PAIR, "reranker"),
    ("/v1/rerank", PAIR, "reranker"),
    ("/v2/rerank", PAIR, "reranker"),
    ("/score", {"text_1": "x", "text_2": "y"}, "reranker"),
    ("/reranking", PAIR, "reranker"),
    ("/v1/reranking", PAIR, "reranker"),
    ("/embedding", {"content": "x"}, "embedder"),
    ("/embeddings", {"content": "x"}, "embedder"),
    ("/v1/score", {"text_1": "x", "text_2": "y"}, "reranker"),
    ("/v1/embeddings", {"input": "x"}, "embedder"),
    ("/v2/embed", {"texts": ["x"]}, "embedder"),
    ("/classify", {"input": "x"}, "classifier"),
    ("/pooling", {"input": "x"}, "colbert"),
    ("/pooling", {"input": "x", "task": "classify"}, "classifier"),
    ("/api/embed", {"input": "x"}, "embedder"),
    ("/api/embeddings", {"prompt": "x"}, "embedder"),
    ("/v1/completions", {"prompt": "x", "max_tokens": 1}, "chat"),
    ("/v1/chat/completions", {"messages": USER, "max_tokens": 1}, "chat"),
    ("/api/chat", {"messages": USER, "stream": False}, "chat"),
    ("/invocations", {"messages": USER, "max_tokens": 1}, "chat"),
    ("/generate", {"inputs": "x", "parameters": {"max_new_tokens": 1}}, "chat"),
    ("/vertex", {"instances": [{"messages": USER, "max_tokens": 1}]}, "chat"),
    ("/v1/responses", {"input": "x", "max_output_tokens": 1}, "chat"),
    ("/v1/responses/compact", {"input": "x", "model": None}, "chat"),
    ("/invocations", {"input": "x"}, "embedder"),
    ("/invocations", PAIR, "reranker"),
    ("/tokenize", {"prompt": "x"}, "{first}"),
]


def fleet(tiny_model: Path, names: list[str]) -> tuple[Harness, FakeLoader]:
    context, loader = make_fleet(tiny_model, dict.fromkeys(names, 60))
    loader.chat = None
    for member in context.fleet.members:
        fields = {"task": "embed", "pooling_type": "mean", "activation": "identity",
                  "is_activated": False, "width": 8, **POOLING[member.name]}  # fmt: skip
        if POOLING[member.name]:
            assert member.config is not None
            model = replace(member.config.model, pooling=PoolingConfig(**fields))
            member.config = member.model.planned = replace(member.config, model=model)
    return Harness(context, build_app(context, ())), loader


async def loads(loader: FakeLoader, client: httpx.AsyncClient, path: str, body: Any) -> list[str]:
    """The models that a request loads."""
    loader.loads.clear()
    await client.post(path, json=body)
    return loader.loads


async def unload_all(harness: Harness) -> None:
    """The engine of a fake model generates, so that what a model can is known before its load."""
    for member in harness.context.fleet.members:
        await harness.context.fleet.unload(member.model)


@pytest.mark.parametrize("names", [list(POOLING), list(POOLING)[::-1]], ids=["first", "last"])
async def test_the_first_model_that_can_answers(tiny_model: Path, names: list[str]) -> None:
    harness, loader = fleet(tiny_model, names)

    async with harness.client() as client:
        for path, body, wanted in ROUTES:
            can = {wanted.format(first=names[0])}
            can |= {"embedder", "embedder2"} if wanted == "embedder" else set()
            can |= {"classifier", "reranker"} if wanted == "classifier" else set()
            if path == "/pooling" and "task" not in body:
                can = set(POOLING) - {"chat"}
            if path in ("/", "/invocations") and wanted == "embedder":
                can |= {"classifier", "reranker"}
            first = next(name for name in names if name in can)
            assert await loads(loader, client, path, body) == [first], (path, body)
            await unload_all(harness)
        info = (await client.get("/info")).json()
        assert info["model_id"] == next(name for name in names if name != "chat")
        info = (await client.get("/info?model=reranker")).json()
        assert (info["model_id"], [*info["model_type"]]) == ("reranker", ["reranker"])
        await harness.context.fleet.close()


def test_sounds_are_for_models_that_write_them_down(tiny_model: Path) -> None:
    harness, _ = fleet(tiny_model, ["embedder", "embedder2", "chat"])
    changes: dict[str, dict[str, Any]] = {
        "embedder": {"images": ImagesConfig({"audio": 1})}, "embedder2": {"num_sources": 1500},
        "chat": {},
    }  # fmt: skip
    for member in harness.context.fleet.members:
        model = replace(member.config.model, pooling=None, **changes[member.name])
        member.model.planned = replace(member.config, model=model)
    models = harness.context.models
    assert first_that_gives(models, "words of sound").names == ("embedder2",)
    assert first_that_gives(models[:1], "words of sound").names == ("embedder",)
    assert first_that_gives(models[1:], "text").names == ("chat",)


async def test_every_route_takes_its_model_from_the_query(tiny_model: Path) -> None:
    harness, loader = fleet(tiny_model, ["chat", "embedder", "embedder2"])

    async with harness.client() as client:
        for path, body, _ in ROUTES:
            for name in ("embedder2", "embedder"):
                asked = f"{path}?model={name}"
                assert await loads(loader, client, asked, body) == [name], path
                await unload_all(harness)
            reply = await client.post(f"{path}?model=chat", json={**body, "model": "embedder"})
            assert reply.status_code == 400, path
            assert "different models" in reply.text
        reply = await client.post("/embed?model=none", json={"inputs": "x"})
        assert reply.status_code == 404
        await harness.context.fleet.close()
    paths = {path for path, _, _ in ROUTES}
    pooling = {one.path for one in ENDPOINTS if one.tag == "pooling"}
    assert pooling <= paths


@pytest.mark.parametrize(
    ("names", "wanted"),
    [(["embedder", "embedder2"], "embedder2"), (["embedder2", "colbert"], "colbert")],
)
async def test_vectors_of_tokens_are_those_of_a_model_for_them_or_of_an_embedder(
    tiny_model: Path, names: list[str], wanted: str
) -> None:
    harness, loader = fleet(tiny_model, names)
    [member] = [one for one in harness.context.fleet.members if one.name == "embedder2"]
    assert member.config is not None
    pooling = member.config.model.pooling
    assert pooling is not None
    pooling = replace(pooling, tokens=replace(pooling, task="token_embed", pooling_type="all"))
    model = replace(member.config.model, pooling=pooling)
    member.config = member.model.planned = replace(member.config, model=model)

    async with harness.client() as client:
        assert await loads(loader, client, "/embed_all", {"inputs": "x"}) == [wanted]
        await harness.context.fleet.close()


async def test_where_no_model_can_the_first_one_says_so(tiny_model: Path) -> None:
    harness, loader = fleet(tiny_model, ["chat"])

    async with harness.client() as client:
        reply = await client.post("/embed", json={"inputs": "x"})
        assert (reply.status_code, loader.loads) == (400, ["chat"])
        assert "generates text" in reply.text
        await harness.context.fleet.close()
