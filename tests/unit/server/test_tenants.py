"""Holders of different API keys do not share K/V."""

from __future__ import annotations

from typing import Any

import pytest
from fake_core import FakeCore

from quire.config import EngineConfig
from quire.protocol import EngineCoreRequest
from quire.server.http.auth import tenant_salt

from .conftest import MakeHarness

KEYS = ("first-key", "second-key")
COMPLETION = ("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 1})
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
ROUTES = [
    COMPLETION,
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", {**COMPLETION[1], "stream": True}),
    ("/v1/completions", {**COMPLETION[1], "use_beam_search": True, "n": 2}),
    ("/v1/messages", CHAT),
    ("/v1/responses", {"input": "hi", "max_output_tokens": 16}),
]


class NotingCore(FakeCore):
    """Notes the salts of requests."""

    salts: list[str | None]

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        NotingCore.salts = []

    def add_request(self, request: EngineCoreRequest) -> None:
        NotingCore.salts.append(request.scope.salt)
        super().add_request(request)


def salts_of(
    make_harness: MakeHarness, keys: tuple[str, ...], *calls: tuple[str, dict[str, Any], str]
) -> list[str | None]:
    """Of each call: path, body and header."""
    harness = make_harness(keys=keys, core=NotingCore)
    found = []
    for path, body, header in calls:
        name, _, value = header.partition("=")
        headers = {name: value} if name else {}
        NotingCore.salts.clear()
        reply = harness.request("POST", path, json=body, headers=headers)
        assert reply.status_code == 200, reply.text
        [salt] = set(NotingCore.salts)
        found.append(salt)
    return found


@pytest.mark.parametrize(("path", "body"), ROUTES, ids=lambda value: str(value)[:40])
def test_each_key_has_a_salt(make_harness: MakeHarness, path: str, body: dict[str, Any]) -> None:
    body = {"model": "tiny", **body}
    calls = [(path, body, f"x-api-key={key}") for key in (*KEYS, KEYS[0])]
    calls.append((path, body, f"authorization=Bearer {KEYS[1]}"))
    first, second = map(tenant_salt, KEYS)
    assert salts_of(make_harness, KEYS, *calls) == [first, second, first, second]
    assert salts_of(make_harness, KEYS[:1], calls[0]) == [None]
    assert salts_of(make_harness, (), (path, body, "")) == [None]


def test_the_own_salt_counts_too(make_harness: MakeHarness) -> None:
    body = {**COMPLETION[1], "cache_salt": "mine"}
    forged = {**COMPLETION[1], "cache_salt": tenant_salt(KEYS[0])}
    first, second, third = salts_of(
        make_harness, KEYS, *[("/v1/completions", body, f"x-api-key={key}") for key in KEYS],
        ("/v1/completions", forged, f"x-api-key={KEYS[1]}"),
    )  # fmt: skip
    assert first == f"{tenant_salt(KEYS[0])}/mine"
    assert second == f"{tenant_salt(KEYS[1])}/mine"
    assert third not in (first, tenant_salt(KEYS[0]))
    assert salts_of(make_harness, KEYS[:1], ("/v1/completions", body, f"x-api-key={KEYS[0]}")) == [
        "mine"
    ]


def test_a_salt_says_nothing_of_its_key() -> None:
    assert len({tenant_salt(key) for key in ("a", "b", "ab", "")}) == 4
    assert "first" not in tenant_salt(KEYS[0])
