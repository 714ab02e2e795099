"""An application of Ray Serve with two replicas: one is killed under load, and no request that had
not begun is lost. Needs Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]
KEY, PORT = "a key of this test", 28123
URL = f"http://127.0.0.1:{PORT}/v1/chat/completions"
BODY: dict[str, Any] = {
    "model": "demo", "messages": [{"role": "user", "content": "What is 17 + 25?"}],
    "max_tokens": 24, "temperature": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def serving() -> Iterator[None]:
    pytest.importorskip("ray")
    from ray import init, serve, shutdown

    from quire.ray.serve import LLMConfig, build_openai_app

    os.environ.update(RAY_worker_niceness="0")
    init(num_cpus=8, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False)
    config = LLMConfig(
        model_loading_config={"model_id": "demo"},
        engine_kwargs={"num_threads": 1, "max_model_len": 512, "max_num_seqs": 8},
        deployment_config={"num_replicas": 2},
        server_kwargs={"api_key": KEY},
    )
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    serve.run(build_openai_app({"llm_configs": [config]}))
    yield
    serve.shutdown()
    shutdown()


def post(key: str = KEY) -> httpx.Response:
    return httpx.post(URL, json=BODY, headers={"Authorization": f"Bearer {key}"}, timeout=120)


def replicas() -> list[int]:
    found = subprocess.run(["pgrep", "-f", "ray::ServeReplica"], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


@pytest.mark.usefixtures("serving")
def test_a_replica_is_killed_under_load() -> None:
    first = post()
    assert first.status_code == 200
    assert post("wrong").status_code == 401
    results: list[tuple[float, int, str]] = []
    is_over = threading.Event()

    def load() -> None:
        while not is_over.is_set():
            begun_at = time.monotonic()
            reply = post()
            results.append((begun_at, reply.status_code, reply.text))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(5.0)
    killed_at = time.monotonic()
    os.kill(replicas()[0], signal.SIGKILL)
    time.sleep(15.0)
    is_over.set()
    for thread in threads:
        thread.join()
    lost = [one for one in results if one[1] != 200]
    assert all(begun_at < killed_at for begun_at, _, _ in lost), lost
    assert len(lost) <= len(threads)
    message = first.json()["choices"][0]["message"]["content"]
    assert all(message in text for _, status, text in results if status == 200)
