"""An application of Ray Serve with two models and an adapter behind one ingress: what strangers and
hurried clients send, and an ingress that stands still for some seconds. Needs Ray."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from adapter_writer import write_files
from polling import until
from safetensors import safe_open
from serve_application import BODY, KEY, LONG, PORT, URL, post, processes, streamed
from test_ray_serve_faults import Serving

from quire.config.checkpoint.model_files import DEMO_MODEL_PATH

pytestmark = [pytest.mark.long, pytest.mark.timeout(3000)]
HEADERS = {"Authorization": f"Bearer {KEY}"}
CHAT = "/v1/chat/completions"


def write_red(folder: Path) -> None:
    """An adapter of the demo model, whose weights NumPy cannot read."""
    rng, rank = np.random.default_rng(0), 4
    tensors = {}
    with safe_open(DEMO_MODEL_PATH / "model.safetensors", "np") as weights:
        for name in weights.keys():  # noqa: SIM118  # it is no mapping
            module = name.removesuffix(".weight")
            if not module.endswith(("q_proj", "v_proj", "down_proj")):
                continue
            rows, depth = weights.get_slice(name).get_shape()
            prefix = f"base_model.model.{module}"
            tensors[f"{prefix}.lora_A.weight"] = rng.standard_normal((rank, depth)) / depth**0.5
            tensors[f"{prefix}.lora_B.weight"] = rng.standard_normal((rows, rank)) / 2
    write_files(folder, tensors, r=rank, target_modules=["q_proj", "v_proj", "down_proj"])


@pytest.fixture(scope="module")
def ingress(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The process of the ingress."""
    pytest.importorskip("ray")
    patch = pytest.MonkeyPatch()
    adapter = tmp_path_factory.mktemp("red")
    write_red(adapter)
    patch.setenv("QUIRE_TEST_ADAPTER", str(adapter))
    serving = Serving(2)
    until(lambda: len(processes("ServeReplica:default:Quire")) == 4)
    engines = processes("ServeReplica:default:Quire:")
    [found] = [one for one in processes("ServeReplica:default:Quire") if one not in engines]
    yield found
    patch.undo()
    serving.close()


def state(pid: int) -> dict[str, int]:
    """Threads, open files and KiB of memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    words = dict(line.split(":", 1) for line in lines)
    return {
        "threads": int(words["Threads"]),
        "files": len(os.listdir(f"/proc/{pid}/fd")),
        "memory": int(words["VmRSS"].split()[0]),
    }


def assert_is_well() -> None:
    reply = post()
    assert reply.status_code == 200, reply.text


@pytest.mark.usefixtures("ingress")
def test_models_and_adapters_behind_one_ingress() -> None:
    """Each name answers as it does alone, in the company of the others, with its own prefixes."""
    names = ("demo", "second", "red")
    listed = httpx.get(f"{URL}/v1/models", headers=HEADERS, timeout=120).json()["data"]
    assert {one["id"] for one in listed} == set(names)
    bodies = [
        {**BODY, "model": name, "messages": [{"role": "user", "content": f"Story {number}" * 40}]}
        for number in range(4)
        for name in names
    ]

    def text(body: dict[str, Any]) -> str:
        reply = post(body=body)
        assert reply.status_code == 200, reply.text
        assert reply.json()["model"] == body["model"]
        return str(reply.json()["choices"][0]["message"]["content"])

    alone = [text(body) for body in bodies]
    for at in range(0, len(bodies), 3):
        assert alone[at] == alone[at + 1] != alone[at + 2]
    with ThreadPoolExecutor(12) as threads:
        assert list(threads.map(text, bodies * 3)) == alone * 3
    unknown = post(body={**BODY, "model": "blue"})
    assert unknown.status_code == 404


def test_odd_bodies_are_refused_and_leave_nothing(ingress: int) -> None:
    """Every body gets an error that a server gives, or an answer, and costs nothing afterwards."""
    rng = random.Random(0)
    whole = json.dumps(BODY).encode()
    odd = [
        b"", b"\0", b"{", b"[]", b"null", b"\xff\xfe{}", b'{"model": "\\ud800"}', b"[" * 100_000,
        whole[:-1], whole + b"x", whole.replace(b'"demo"', b"1e999"), b" " * 1_000_000,
        whole.replace(b"What is", b"a" * 15_000_000),
        b'{"model": "demo", "messages": ' + b"[" * 500 + b"]" * 500 + b"}",
    ]  # fmt: skip
    odd += [bytes(b ^ (rng.random() < 0.02) * rng.randrange(256) for b in whole) for _ in range(60)]
    before = state(ingress)
    with httpx.Client(headers={**HEADERS, "content-type": "application/json"}) as client:
        for _ in range(2):
            for body in odd:
                reply = client.post(URL + CHAT, content=body, timeout=240)
                assert reply.status_code in (200, 400, 404, 413, 422), (
                    body[:200],
                    reply.text[:300],
                )
                if reply.status_code != 200:
                    assert reply.json()["error"]["message"]
        half = client.post(URL + CHAT, content=b'{"messages": "\\ud800"}', timeout=240).json()
        assert "half of a pair" in half["error"]["message"]
        large = client.post(URL + CHAT, content=b" " * (17 << 20), timeout=240)
        assert large.status_code == 413
        rank = {"X-data-parallel-rank": "zz"}
        assert client.post(URL + CHAT, content=whole, headers=rank).status_code == 400
    assert_is_well()
    after = state(ingress)
    assert after["threads"] <= before["threads"] + 8
    assert after["files"] <= before["files"] + 8
    assert after["memory"] < before["memory"] + 300_000


def test_uploads_that_do_not_end_are_ended(ingress: int) -> None:
    """After `body_timeout`; others are answered meanwhile."""
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        "Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n{"
    ).encode()
    before = state(ingress)
    sockets = []
    for _ in range(100):
        one = socket.create_connection(("127.0.0.1", PORT))
        one.sendall(head)
        one.settimeout(240)
        sockets.append(one)
    assert_is_well()
    for one in sockets[:50]:
        assert b" 408 " in one.recv(1000)
    for one in sockets:
        one.close()
    until(lambda: state(ingress)["files"] <= before["files"] + 8)
    assert_is_well()


def test_clients_that_leave_free_their_requests(ingress: int) -> None:
    """Before, in and after the first token, by the hundred."""
    before = state(ingress)

    def leave(number: int) -> None:
        body = {**LONG, "model": ("demo", "second", "red")[number % 3], "stream": True}
        wait_s = (0.01, 0.3, 3.0)[number % 3]
        try:
            with httpx.stream(
                "POST", URL + CHAT, json=body, headers=HEADERS, timeout=httpx.Timeout(wait_s)
            ) as reply:
                next(reply.iter_bytes(), b"")
        except httpx.HTTPError:
            pass

    with ThreadPoolExecutor(20) as threads:
        list(threads.map(leave, range(120)))
    until(lambda: _num_open() == 0, 240)
    assert_is_well()
    after = state(ingress)
    assert after["threads"] <= before["threads"] + 8
    assert after["memory"] < before["memory"] + 300_000


def test_the_ingress_stands_still(ingress: int) -> None:
    """For six seconds, with streams that have begun and requests that wait: all are whole."""
    body = {**LONG, "max_tokens": 1500}
    whole = streamed(body)[0]
    has_begun = threading.Semaphore(0)
    with ThreadPoolExecutor(40) as threads:
        begun = [threads.submit(streamed, body, has_begun) for _ in range(16)]
        for _ in range(16):
            assert has_begun.acquire(timeout=240)
        waiting = [threads.submit(streamed, body) for _ in range(4)]
        time.sleep(0.3)
        os.kill(ingress, signal.SIGSTOP)
        late = [threads.submit(streamed, BODY) for _ in range(4)]
        time.sleep(6.0)
        os.kill(ingress, signal.SIGCONT)
        assert [one.result()[:2] for one in (*begun, *waiting)] == [(whole, "")] * 20
        assert [one.result()[1] for one in late] == [""] * 4
    until(lambda: _num_open() == 0, 240)


def _num_open() -> float:
    """Requests that run or wait, of all models."""
    text = httpx.get(f"{URL}/metrics", headers=HEADERS, timeout=120).text
    names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(names))
