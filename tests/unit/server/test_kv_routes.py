"""The routes of the KV store: they exist where the engine has one."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from fake_core import FakeCore

from quire.config import EngineConfig
from quire.errors import ConfigError
from quire.metrics.kv_store_series import KVStoreSeries
from quire.server.http.auth import tenant_salt

from .conftest import Harness, MakeHarness

USAGE = {
    "tiers": [{"tier": "disk", "chunks": 3, "bytes": 300, "max_bytes": 1000}],
    "counts": {"loaded_chunks": {"disk": 2}},
}
ROUTES = (("GET", "/kv"), ("POST", "/kv/clear"), ("POST", "/kv/pin"))


class StoringCore(FakeCore):
    """Has the commands of a store."""

    pins: list[tuple[Any, ...]]
    usage: ClassVar[dict[str, tuple[int, int]]] = {}

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        StoringCore.pins = []
        self.commands |= {
            "kv_store_usage": lambda: USAGE,
            "kv_store_stats": lambda: {"sums": USAGE["counts"], "usage": StoringCore.usage},
            "kv_store_clear": self._clear,
            "kv_store_pin": self._pin,
        }

    def _clear(self, salt: str | None) -> int:
        return 3 if salt is None else salt.count(tenant_salt("two"))

    def _pin(self, token_ids: list[int], salt: str | None, pin: bool) -> int:
        StoringCore.pins.append((token_ids, salt, pin))
        return len(token_ids) // 4 * 4


@pytest.fixture
def server(make_harness: MakeHarness) -> Harness:
    return make_harness(has_kv_store=True, core=StoringCore)


def test_usage_and_clear(server: Harness) -> None:
    assert server.request("GET", "/kv").json() == USAGE
    assert server.request("POST", "/kv/clear").json() == {"num_chunks": 3}
    assert server.request("GET", "/kv/clear").status_code == 405
    assert server.request("POST", "/kv/clear?all=1").status_code == 400


def test_the_metrics_are_those_of_now(server: Harness) -> None:
    """An idle engine's store goes on writing, and is cleared: no step tells of it."""
    engine = server.model.engine
    assert engine is not None
    series = engine.metrics.series
    series.kv_store = KVStoreSeries(series.metric_set)
    for chunks, size in ((3, 300), (1, 100), (0, 0)):
        StoringCore.usage = {"disk": (chunks, size)}
        lines = server.request("GET", "/metrics").text.splitlines()
        [found] = [line for line in lines if line.startswith("quire:kv_store_usage_bytes{")]
        assert 'tier="disk"' in found
        assert float(found.split()[-1]) == size


def test_a_prompt_is_pinned_by_the_tokens_of_a_request(server: Harness) -> None:
    reply = server.post("/kv/pin", {"prompt": "ABCDEF"})
    wanted = server.post("/tokenize", {"prompt": "ABCDEF"}).json()["tokens"]
    assert reply.json() == {"pin": True, "num_tokens": 6, "num_pinned_tokens": 4}
    messages = [{"role": "system", "content": "Be kind."}]
    body = {"messages": messages, "add_generation_prompt": False}
    chat = server.post("/tokenize", body).json()["tokens"]
    reply = server.post("/kv/pin", {**body, "cache_salt": "mine", "pin": False})
    assert reply.json()["num_tokens"] == len(chat)
    assert StoringCore.pins == [(wanted, None, True), (chat, "mine", False)]


@pytest.mark.parametrize(
    "body",
    [
        {}, {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, {"prompt": 3},
        {"prompt": "a", "cache_salt": ""}, {"prompt": "a", "pin": "perhaps"},
        {"prompt": "a" * 9999},
    ],
    ids=str,
)  # fmt: skip
def test_bad_bodies(server: Harness, body: dict[str, Any]) -> None:
    assert server.post("/kv/pin", body).status_code == 400
    assert StoringCore.pins == []


def test_keys_are_asked_for_and_divide(make_harness: MakeHarness) -> None:
    server = make_harness(keys=("one", "two"), has_kv_store=True, core=StoringCore)
    assert [server.request(*route).status_code for route in ROUTES] == [401, 401, 401]
    operators, tenants = ({"x-api-key": key} for key in ("one", "two"))
    assert server.request("GET", "/kv", headers=operators).json() == USAGE
    assert server.request("GET", "/kv", headers=tenants).status_code == 403
    pins = [
        server.request("POST", "/kv/pin", json={"prompt": "A"}, headers=headers).status_code
        for headers in (operators, tenants)
    ]
    assert pins == [200, 403]
    [(_, salt, _)] = StoringCore.pins
    assert salt == tenant_salt("one")
    cleared = server.request("POST", "/kv/clear", headers=tenants).json()
    assert cleared == {"num_chunks": 1}  # that of this key alone


def test_what_the_engine_refuses(make_harness: MakeHarness) -> None:
    class Refusing(StoringCore):
        def _pin(self, token_ids: list[int], *_: object) -> int:
            raise ConfigError(f"no room to pin {len(token_ids)} tokens")

    reply = make_harness(has_kv_store=True, core=Refusing).post("/kv/pin", {"prompt": "A"})
    assert reply.status_code == 400
    assert "no room to pin 1 tokens" in reply.text


def test_without_a_store_they_say_how_to_have_one(make_harness: MakeHarness) -> None:
    server = make_harness()
    for route in ROUTES:
        reply = server.request(*route)
        assert reply.status_code == 404
        assert "--kv-store" in reply.text
