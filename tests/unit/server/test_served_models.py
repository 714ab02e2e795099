"""A server of two models: names in requests select a model, or an adapter of a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from quire.adapters import AdapterModule

from .conftest import Harness, MakeScripted


@pytest.fixture
def two_models(make_scripted: MakeScripted, tiny_model: Path) -> Iterator[Harness]:
    from fake_engine import fake_engine
    from scripted_core import scripted

    from quire.parsers.format import ReplyFormat

    harness = make_scripted("first")
    second = harness.context.add_model(("second",))
    second.adapters.add(AdapterModule("tuned", "/somewhere/tuned"))
    second.engine = fake_engine(tiny_model, scripted("second"))
    second.chat, second.found_format = harness.model.chat, ReplyFormat()
    yield harness
    second.engine.shutdown()


def chat(harness: Harness, **fields: Any) -> httpx.Response:
    messages = [{"role": "user", "content": "hi"}]
    return harness.post("/v1/chat/completions", {"messages": messages, "max_tokens": 32, **fields})


def test_a_name_selects_a_model(two_models: Harness) -> None:
    for fields, name, text in (
        ({"model": "second"}, "second", "second"),
        ({"model": "alias"}, "alias", "first"),
        ({}, "tiny", "first"),
    ):
        reply = chat(two_models, **fields)
        assert reply.status_code == 200, reply.text
        assert reply.json()["model"] == name
        assert reply.json()["choices"][0]["message"]["content"] == text


def test_the_models_have_fingerprints_of_their_own(two_models: Harness) -> None:
    fingerprints = {chat(two_models, model=name).json()["system_fingerprint"] for name in
                    ("tiny", "alias", "second")}  # fmt: skip
    assert len(fingerprints) == 2


def test_a_name_resolves_to_a_model_and_an_adapter(two_models: Harness) -> None:
    context = two_models.context
    target = context.target("tuned")
    assert (target.name, target.model) == ("tuned", context.models[1])
    assert target.adapter is not None
    assert target.adapter.lora_path == "/somewhere/tuned"
    assert context.target("second").adapter is None
    cards = {card["id"]: card for card in two_models.request("GET", "/v1/models").json()["data"]}
    assert [*cards] == ["tiny", "alias", "second", "tuned"]
    assert cards["tuned"]["parent"] == "second"
    assert cards["tuned"]["root"] == "/somewhere/tuned"
    assert cards["second"]["parent"] is None


def test_an_adapter_is_refused_by_an_engine_without_adapters(two_models: Harness) -> None:
    reply = chat(two_models, model="tuned")
    assert reply.status_code == 400
    assert "tuned" in reply.json()["error"]["message"]
    assert "LoRA is not enabled" in reply.json()["error"]["message"]


def test_an_unknown_name_lists_the_names_of_all_models(two_models: Harness) -> None:
    reply = chat(two_models, model="third")
    assert reply.status_code == 404
    assert "`tiny`, `alias`, `second`, `tuned`" in reply.json()["error"]["message"]


def test_the_server_is_ready_once_all_models_are(two_models: Harness) -> None:
    assert two_models.request("GET", "/ready").status_code == 200
    two_models.context.add_model(("third",))
    assert two_models.request("GET", "/ready").json()["status"] == "loading"
