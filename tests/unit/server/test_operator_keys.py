"""Of several API keys, the operator's alone change and read what all share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_fleet import make_fleet

from quire.config.engine_args import EngineArgs
from quire.errors import ConfigError
from quire.server.all_endpoints import ENDPOINTS
from quire.server.app import build_app
from quire.server.args import ServerArgs
from quire.server.http.api_keys import load_api_keys, operator_keys

from .conftest import Harness, MakeHarness

OPERATOR, TENANT = "operator-key", "tenant-key"
KEYS = (OPERATOR, TENANT)
SHARED = {
    "/metrics", "/load", "/get_load", "/slots", "/kv_event_sources", "/kv", "/kv/pin",
    "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/adapters", "/adapters/{name}",
    "/v1/models/load", "/models/load", "/v1/models/unload", "/models/unload",
    "/api/pull", "/api/copy", "/api/create", "/api/delete",
    "/sleep", "/wake_up", "/is_sleeping", "/release_kv_cache_memory", "/pause", "/resume",
    "/is_paused", "/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache",
    "/abort_requests", "/collective_rpc", "/start_profile", "/stop_profile", "/server_info",
    "/get_world_size",
}  # fmt: skip
"""What changes or shows something that is not one key's alone."""


def with_key(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def all_routes(tiny_model: Path, keys: tuple[str, ...], **options: Any) -> Harness:
    """A server of two models that are not loaded, with every route."""
    context, _ = make_fleet(
        tiny_model, {"a": 60, "b": 60}, allow_model_changes=True, enable_dev_routes=True,
        enable_tokenizer_info_endpoint=True, **options,
    )  # fmt: skip
    context.has_adapters = context.has_kv_store = context.has_profiler = True
    assert context.fleet is not None
    context.fleet.engine_args = EngineArgs()
    return Harness(context, build_app(context, keys))


def refused(harness: Harness, key: str | None) -> set[str]:
    """Paths that answer 403 to a key."""
    headers = {} if key is None else with_key(key)

    async def scenario(client: httpx.AsyncClient) -> set[str]:
        found = set()
        for one in ENDPOINTS:
            path = one.path.replace("{model_id}", "a").replace("{response_id}", "resp_1")
            reply = await client.request(one.method, path, headers=headers, json=[])
            if reply.status_code == 403:
                found.add(one.path)
        return found

    found: set[str] = harness.run(scenario)
    return found


def test_every_shared_route_is_for_the_operators_key(tiny_model: Path) -> None:
    several = all_routes(tiny_model, KEYS)
    assert refused(several, TENANT) == SHARED
    assert refused(several, OPERATOR) == set()


def test_one_key_and_none_may_do_everything(tiny_model: Path) -> None:
    assert refused(all_routes(tiny_model, KEYS[:1]), OPERATOR) == set()
    assert refused(all_routes(tiny_model, ()), None) == set()


def test_the_operators_keys_can_be_named(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    file.write_text("from-file")
    args = ServerArgs(api_key=(TENANT,), api_key_file=str(file), operator_api_key=(OPERATOR,))
    assert load_api_keys(args) == (OPERATOR, TENANT, "from-file")
    assert operator_keys(args, load_api_keys(args)) == {OPERATOR}
    monkeypatch.setenv("QUIRE_OPERATOR_API_KEY", "another")
    assert operator_keys(args, load_api_keys(args)) == {OPERATOR, "another"}
    tenants = ServerArgs(api_key=("t1", "t2"))
    assert load_api_keys(tenants) == ("another", "t1", "t2")
    assert operator_keys(tenants, load_api_keys(tenants)) == {"another"}
    monkeypatch.delenv("QUIRE_OPERATOR_API_KEY")
    assert operator_keys(tenants, load_api_keys(tenants)) == {"t1"}
    assert operator_keys(ServerArgs(), ()) == set()
    with pytest.raises(ConfigError, match="API key"):
        load_api_keys(ServerArgs(operator_api_key=(" a",)))
    harness = all_routes(tiny_model, load_api_keys(args), operator_api_key=(OPERATOR,))
    assert refused(harness, TENANT) == SHARED
    assert refused(harness, OPERATOR) == set()


def test_the_first_valid_key_of_a_request_decides(make_harness: MakeHarness) -> None:
    harness = make_harness(keys=KEYS)
    for first, second, status in ((TENANT, OPERATOR, 403), (OPERATOR, TENANT, 200)):
        headers = {**with_key(first), "x-api-key": second}
        assert harness.request("GET", "/load", headers=headers).status_code == status
    reply = harness.request("GET", "/load", headers=with_key(TENANT))
    assert "--operator-api-key" in reply.json()["error"]["message"]


def test_the_load_of_the_engine_is_reported_to_the_operator(make_harness: MakeHarness) -> None:
    harness = make_harness(keys=KEYS)
    body = {"prompt": "a", "max_tokens": 1}
    for key, is_reported in ((OPERATOR, True), (TENANT, False)):
        headers = {**with_key(key), "endpoint-load-metrics-format": "JSON"}
        reply = harness.post("/v1/completions", body, headers=headers)
        assert reply.status_code == 200
        assert ("endpoint-load-metrics" in reply.headers) == is_reported


def test_the_live_view_shows_a_tenant_what_the_model_is(make_harness: MakeHarness) -> None:
    harness = make_harness(keys=KEYS)
    mine = harness.request("GET", "/quire/live", headers=with_key(TENANT)).json()
    whole = harness.request("GET", "/quire/live", headers=with_key(OPERATOR)).json()
    assert set(mine) == {
        "state", "model", "uptime_s", "kv", "shows_use", "is_demo", "takes_images", "takes_audio",
        "transcribes", "scoring", "sampling",
    }  # fmt: skip
    assert (mine["kv"], mine["shows_use"], whole["shows_use"]) == (None, False, True)
    assert {"requests", "rates", "prefix_cache", "tokens", "device"} <= set(whole)


async def test_a_tenant_neither_sees_nor_decides_how_models_are_used(tiny_model: Path) -> None:
    harness = all_routes(tiny_model, KEYS)
    context = harness.context

    async with harness.client() as client:

        async def call(key: str, path: str, **body: Any) -> httpx.Response:
            method = "POST" if body else "GET"
            return await client.request(method, path, headers=with_key(key), json=body or None)

        ask = {"model": "a", "prompt": "x", "stream": False, "options": {"num_predict": 1}}
        for key, kept_s in ((TENANT, None), (OPERATOR, 60.0), (TENANT, 60.0)):
            value = "1m" if key == OPERATOR else "2m"
            reply = await call(key, "/api/generate", **ask, raw=True, keep_alive=value)
            assert reply.status_code == 200, reply.text
            is_ignored = "keep_alive" in reply.headers.get("x-quire-ignored-fields", "")
            assert is_ignored == (key == TENANT)
            assert context.fleet.members[0].keep_alive_s == kept_s
        for path in ("/v1/models/a", "/v1/models"):
            cards = [(await call(key, path)).json() for key in (TENANT, OPERATOR)]
            mine, whole = [card.get("data", [card])[0]["status"] for card in cards]
            assert whole.pop("num_requests") == 0
            assert whole["expires_in"] <= 60
            assert mine == {**whole, "expires_in": None}
        unload = {"model": "a", "prompt": "", "keep_alive": 0}
        assert (await call(TENANT, "/api/generate", **unload)).status_code == 403
        assert (await call(TENANT, "/api/chat", **{**unload, "messages": []})).status_code == 403
        assert context.fleet.members[0].state == "loaded"
        context.fleet.members[0].last_used -= 30
        tenants, operators = [
            (await call(key, "/api/ps")).json()["models"][0]["expires_at"]
            for key in (TENANT, OPERATOR)
        ]
        assert tenants > operators
        assert (await call(OPERATOR, "/api/generate", **unload)).status_code == 200
        assert context.fleet.members[0].state == "unloaded"
        await context.fleet.close()
