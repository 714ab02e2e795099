"""The routes that control the engine: what they ask of it, and what they answer."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from fake_core import FakeCore

from quire.config import EngineConfig
from quire.errors import ConfigError

from .conftest import Harness, MakeHarness


class RecordingCore(FakeCore):
    """A core that writes down what is asked of it."""

    calls: list[tuple[str, Any]]

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        type(self).calls = []
        self.commands |= {
            "sleep": lambda level: self._note("sleep", level),
            "wake_up": lambda tags: self._note("wake_up", tags) or tags != ["weights"],
            "is_sleeping": lambda: True,
            "release_kv_cache_memory": lambda: self._note("release", None),
            "reset_prefix_cache": lambda *resets: self._note("reset", resets) or resets[0],
            "reset_encoder_cache": lambda: self._note("reset_encoder_cache", ()),
            "collective_rpc": self._rpc,
            "start_profile": lambda *args: self._note("start_profile", args),
            "stop_profile": self._stop_profile,
        }

    def _note(self, name: str, value: Any) -> None:
        self.calls.append((name, value))

    def _pause(self, mode: str) -> None:
        self._note("pause", mode)
        super()._pause(mode)

    def _stop_profile(self) -> None:
        if self.calls and self.calls[-1][0] == "stop_profile":
            raise ConfigError("the trace cannot be written")
        self._note("stop_profile", None)

    def _rpc(self, method: str, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
        if method == "nothing":
            raise ConfigError("a worker has no method 'nothing'; it has progress")
        self._note(method, (args, kwargs))
        return [None, {"a": 1}, [2], 3, "four"]


@pytest.fixture
def engine(make_harness: MakeHarness) -> Harness:
    return make_harness(enable_dev_routes=True, core=RecordingCore)


def answer(engine: Harness, method: str, path: str, **options: Any) -> Any:
    reply = engine.request(method, path, **options)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_sleep_and_wake_up(engine: Harness) -> None:
    assert answer(engine, "POST", "/sleep") == {"status": "sleeping", "level": 1}
    assert answer(engine, "GET", "/is_sleeping") == {"is_sleeping": True}
    assert engine.request("GET", "/ready").status_code == 503
    assert engine.request("GET", "/health").status_code == 200
    slept = answer(engine, "POST", "/sleep?level=2&mode=keep")
    assert slept == {"status": "sleeping", "level": 2}
    woken = answer(engine, "POST", "/wake_up?tags=weights")
    assert woken == {"status": "sleeping", "tags": ["weights"]}
    woken = answer(engine, "POST", "/wake_up?tags=weights&tags=kv_cache")
    assert woken == {"status": "awake", "tags": ["weights", "kv_cache"]}
    assert answer(engine, "POST", "/wake_up") == {"status": "awake", "tags": None}
    assert answer(engine, "POST", "/release_kv_cache_memory") == {"status": "kv_cache_released"}
    assert RecordingCore.calls == [
        ("pause", "abort"), ("sleep", 1), ("pause", "keep"), ("sleep", 2), ("wake_up", ["weights"]),
        ("wake_up", ["weights", "kv_cache"]), ("wake_up", None), ("release", None),
    ]  # fmt: skip


def test_the_metrics_tell_of_sleep(engine: Harness) -> None:
    def state(name: str) -> float:
        [line] = [
            line
            for line in engine.request("GET", "/metrics").text.splitlines()
            if line.startswith("vllm:engine_sleep_state{") and f'"{name}"' in line
        ]
        return float(line.rsplit(" ", 1)[1])

    names = ("awake", "weights_offloaded", "discard_all")
    assert [state(name) for name in names] == [1, 0, 0]
    answer(engine, "POST", "/sleep?level=1")
    assert [state(name) for name in names] == [0, 1, 0]
    answer(engine, "POST", "/sleep?level=2")
    assert [state(name) for name in names] == [0, 0, 1]
    answer(engine, "POST", "/wake_up")
    assert [state(name) for name in names] == [1, 0, 0]
    text = engine.request("GET", "/metrics").text
    assert 'vllm:sleep_mode_operation_duration_seconds_count{operation="sleep"} 2.0' in text
    assert 'vllm:sleep_mode_operations_in_flight{operation="sleep"} 0.0' in text


def test_a_pause_holds_requests_back(engine: Harness) -> None:
    body = {"prompt": "A", "max_tokens": 2}

    async def scenario(client: httpx.AsyncClient) -> None:
        paused = await client.post("/pause?mode=wait&clear_cache=false")
        assert paused.json() == {"status": "paused"}
        assert (await client.get("/is_paused")).json() == {"is_paused": True}
        waiting = asyncio.ensure_future(client.post("/v1/completions", json=body))
        done, _ = await asyncio.wait({waiting}, timeout=0.1)
        assert not done
        assert (await client.post("/resume")).json() == {"status": "resumed"}
        assert (await client.get("/is_paused")).json() == {"is_paused": False}
        assert (await waiting).json()["choices"][0]["text"] == "BC"

    engine.run(scenario)
    assert ("reset", True) not in RecordingCore.calls


def test_requests_are_aborted_by_the_ids_of_their_replies(engine: Harness) -> None:
    body = {"prompt": ["A", "B"], "max_tokens": 400}

    async def ask(client: httpx.AsyncClient, name: str) -> list[str]:
        reply = await client.post("/v1/completions", json=body, headers={"X-Request-Id": name})
        return [choice["finish_reason"] for choice in reply.json()["choices"]]

    async def abort(client: httpx.AsyncClient, **body: Any) -> Any:
        return (await client.post("/abort_requests", json=body)).json()

    async def scenario(client: httpx.AsyncClient) -> None:
        one, other = (asyncio.ensure_future(ask(client, name)) for name in ("one", "other"))
        while engine.context.num_generating < 2:
            await asyncio.sleep(0.01)
        unknown = await abort(client, request_ids=["cmpl-on", "one", "cmpl-one-7"])
        assert unknown == {"status": "aborted", "aborted": 0}
        assert await abort(client, request_ids=["cmpl-one"]) == {"status": "aborted", "aborted": 2}
        assert await one == ["abort", "abort"]
        assert not other.done()
        assert await abort(client) == {"status": "aborted", "aborted": 2}
        assert await other == ["abort", "abort"]
        assert await abort(client, request_ids=[]) == {"status": "aborted", "aborted": 0}

    engine.run(scenario)
    assert engine.request("POST", "/abort_requests").status_code == 400


def test_caches_are_reset(engine: Harness) -> None:
    assert answer(engine, "POST", "/reset_prefix_cache") == {"success": False}
    path = "/reset_prefix_cache?reset_running_requests=true&reset_external=true"
    assert answer(engine, "POST", path) == {"success": True}
    assert RecordingCore.calls[-1] == ("reset", (True, True))
    for path in ("/reset_mm_cache", "/reset_encoder_cache"):
        reply = engine.request("POST", path)
        assert (reply.status_code, reply.content) == (200, b"")
        assert RecordingCore.calls[-1] == ("reset_encoder_cache", ())


def test_a_method_of_the_worker_is_called_by_name(engine: Harness) -> None:
    body = {"method": "tell", "args": [1, "a"], "kwargs": {"b": [2]}, "timeout": 5}
    found = answer(engine, "POST", "/collective_rpc", json=body)
    assert found == {"results": [None, {"a": 1}, [2], "3", "four"]}
    assert RecordingCore.calls == [("tell", ([1, "a"], {"b": [2]}))]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"method": "nothing"}, "it has progress"),
        ({}, "method"), ({"method": ["a"]}, "method"), ({"method": ""}, "method"),
        ({"method": "x" * 200}, "method"), ({"method": "a", "args": {}}, "args"),
        ({"method": "a", "kwargs": []}, "kwargs"), ({"method": "a", "timeout": 0}, "timeout"),
        ({"method": "a", "timeout": -1}, "timeout"), ([], "Invalid request body"),
    ],
)  # fmt: skip
def test_a_call_that_makes_no_sense_is_refused(engine: Harness, body: Any, message: str) -> None:
    reply = engine.request("POST", "/collective_rpc", json=body)
    assert reply.status_code == 400
    assert message in reply.json()["error"]["message"]
    assert RecordingCore.calls == []


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/sleep?level=99", "it is a whole number from 0 to 2"),
        ("/sleep?level=-1", "it is a whole number from 0 to 2"),
        ("/sleep?level=1.5", "it is a whole number from 0 to 2"),
        ("/sleep?level=1&level=2", "more than once"),
        ("/sleep?mode=x", "it is one of abort, keep, wait"),
        ("/sleep?levle=2", "this route has level and mode"),
        ("/wake_up?tags=cache", "it is one of kv_cache, scheduling, weights"),
        ("/wake_up?tags=", "it is one of kv_cache, scheduling, weights"),
        ("/pause?mode=now", "it is one of abort, keep, wait"),
        ("/pause?clear_cache=perhaps", "it is true or false"),
        ("/resume?now=1", "this route has no parameters"),
        ("/reset_prefix_cache?reset_running_requests=7", "it is true or false"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(engine: Harness, path: str, message: str) -> None:
    reply = engine.request("POST", path)
    assert reply.status_code == 400
    assert message in reply.json()["error"]["message"]
    assert reply.json()["error"]["param"].startswith("query.")
    assert RecordingCore.calls == []


def test_a_dead_or_loading_engine_is_not_controlled(make_harness: MakeHarness) -> None:
    loading = make_harness(is_loaded=False, enable_dev_routes=True)
    for path in ("/sleep", "/wake_up", "/pause", "/resume", "/reset_mm_cache"):
        assert loading.request("POST", path).status_code == 503


def test_nothing_of_it_is_there_by_default(make_harness: MakeHarness) -> None:
    harness = make_harness(core=RecordingCore)
    assert harness.request("POST", "/sleep").status_code == 404
    assert harness.post("/collective_rpc", {"method": "tell"}).status_code == 404
    assert RecordingCore.calls == []


def test_profiles(make_harness: MakeHarness) -> None:
    harness = make_harness(core=RecordingCore, has_profiler=True)
    wanted = {"profile_prefix": "a", "delay_iterations": 2, "max_iterations": 3, "other": 1}
    for reply in (
        harness.request("POST", "/start_profile"),
        harness.post("/start_profile", {}),
        harness.post("/start_profile", wanted),
        harness.request("POST", "/stop_profile"),
    ):
        assert (reply.status_code, reply.content) == (200, b"")
    assert RecordingCore.calls == [
        ("start_profile", (None, None, None)), ("start_profile", (None, None, None)),
        ("start_profile", ("a", 2, 3)), ("stop_profile", None),
    ]  # fmt: skip
    failed = harness.request("POST", "/stop_profile")
    assert failed.status_code == 400
    assert "cannot be written" in failed.json()["error"]["message"]
    wrong = harness.post("/start_profile", {"max_iterations": -1})
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "max_iterations"


def test_profiles_need_a_directory(make_harness: MakeHarness) -> None:
    reply = make_harness(enable_dev_routes=True).request("POST", "/start_profile")
    assert reply.status_code == 404
    assert "--profiler-config" in reply.json()["error"]["message"]


def test_the_live_view_has_the_sampling_defaults_and_the_api_has_none(
    make_harness: MakeHarness,
) -> None:
    harness = make_harness()
    shown = harness.request("GET", "/quire/live").json()
    assert shown["is_demo"] is False
    chat = {
        "temperature": 0.5, "top_p": 0.95, "min_p": 0.05, "presence_penalty": 1.0,
    }  # fmt: skip
    assert shown["sampling"] == {"model": {}, "chat": chat}
    body = {"model": harness.context.names[0], "prompt": "a"}
    rendered = harness.post("/v1/completions/render", body).json()
    assert rendered[0]["sampling_params"].get("temperature", 1.0) == 1.0
