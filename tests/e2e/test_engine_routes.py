"""The development routes of a real server: asleep, awake, and the same tokens after."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from quire.bench.datasets import DatasetArgs
from quire.bench.load import TrafficArgs
from quire.bench.serve import ServeBenchArgs, run

from .conftest import StartServer

KEY = {"Authorization": "Bearer secret"}
BODY = {"prompt": "abcabcabcabcabcabc", "max_tokens": 8, "temperature": 0}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("engine_mode", ["thread", "process"])
def test_tokens_are_the_same_after_sleep(start_server: StartServer, engine_mode: str) -> None:
    server = start_server(
        env={"VLLM_SERVER_DEV_MODE": "1"}, api_key="secret", engine_mode=engine_mode
    )
    with server.client(headers=KEY) as client:

        def post(path: str, body: Any = None) -> Any:
            return client.post(path, json=body).raise_for_status().json()

        def text() -> str:
            return post("/v1/completions", BODY)["choices"][0]["text"]

        before = text()
        for level in (1, 2):
            assert post(f"/sleep?level={level}") == {"status": "sleeping", "level": level}
            assert client.get("/is_sleeping").json() == {"is_sleeping": True}
            assert post("/wake_up")["status"] == "awake"
            assert text() == before
        assert post("/collective_rpc", {"method": "check_health"}) == {"results": [None]}
        for method in ("close", "_load", "os.system"):
            assert client.post("/collective_rpc", json={"method": method}).status_code == 400
        assert text() == before


def test_a_request_waits_until_the_engine_is_awake(start_server: StartServer) -> None:
    server = start_server(enable_dev_routes=True)
    replies: list[httpx.Response] = []

    def ask() -> None:
        with server.client() as client:
            replies.append(client.post("/v1/completions", json=BODY))

    with server.client() as client:
        client.post("/sleep?level=1").raise_for_status()
        asking = threading.Thread(target=ask)
        asking.start()
        server.until(lambda: client.get("/load").json()["server_load"] == 1)
        assert client.get("/ready").status_code == 503
        assert not replies
        partly = client.post("/wake_up?tags=weights").raise_for_status().json()
        assert partly["status"] == "sleeping"
        assert not replies
        client.post("/wake_up?tags=kv_cache").raise_for_status()
        asking.join(30)
    assert replies[0].status_code == 200


@pytest.mark.sweep(1)
@pytest.mark.parametrize("engine_mode", ["thread", "process"])
def test_a_benchmark_lets_the_server_record_its_steps(
    start_server: StartServer, engine_mode: str, tmp_path: Path
) -> None:
    chosen = {"profiler": "torch", "torch_profiler_dir": str(tmp_path)}
    server = start_server(engine_mode=engine_mode, profiler_config=json.dumps(chosen))
    load = ServeBenchArgs(base_url=server.url, disable_tqdm=True, profile=True)
    few = DatasetArgs(num_prompts=2, input_len=8, output_len=3)
    run(load, few, TrafficArgs())
    [trace] = tmp_path.iterdir()
    with gzip.open(trace, "rt") as file:
        events = json.load(file)["traceEvents"]
    assert sum(event["name"] == "step" for event in events) >= 3
    with server.client() as client:
        assert client.post("/start_profile").status_code == 200
        again = client.post("/start_profile")
        assert again.status_code == 400
        assert "already active" in again.json()["error"]["message"]
