"""The development routes of a real server: asleep, awake, and the same tokens after."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest

from .conftest import StartServer

KEY = {"Authorization": "Bearer secret"}
BODY = {"prompt": "abcabcabcabcabcabc", "max_tokens": 8, "temperature": 0}


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
