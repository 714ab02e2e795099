"""An application of Ray Serve with three replicas: conversations find their prefixes, and replicas,
the controller and clients go in the middle of replies. Needs Ray."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from polling import until
from serve_application import (
    BODY,
    KEY,
    LONG,
    SLOW_S,
    URL,
    cpu_s,
    post,
    processes,
    replicas,
    start,
    streamed,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


@pytest.fixture(scope="module")
def serving() -> Iterator[Any]:
    pytest.importorskip("ray")
    from ray import shutdown

    serve = start(3)
    yield serve
    serve.shutdown()
    shutdown()


def are_idle() -> bool:
    """Whether three replicas have started and compute nothing."""
    before = {pid: cpu_s(pid) for pid in replicas()}
    time.sleep(1.0)
    return len(before) == 3 and all(cpu_s(pid) - was < 0.3 for pid, was in before.items())


@pytest.mark.usefixtures("serving")
def test_routes_and_errors_are_those_of_a_server() -> None:
    assert post().status_code == 200
    assert post("wrong").status_code == 401
    unknown = post(body={**BODY, "model": "nothing"})
    assert unknown.status_code == 404
    assert "demo" in unknown.json()["error"]["message"]
    headers = {"Authorization": f"Bearer {KEY}"}
    for path in ("/health", "/version", "/v1/models", "/metrics"):
        assert httpx.get(URL + path, headers=headers).status_code == 200
    body = {"model": "demo", "prompt": "1 + 1"}
    assert httpx.post(f"{URL}/tokenize", json=body, headers=headers).json()["count"] > 1
    reset = httpx.post(f"{URL}/reset_prefix_cache", headers=headers)
    assert reset.status_code in (200, 404)  # a route of developers


@pytest.mark.usefixtures("serving")
def test_conversations_find_their_prefixes() -> None:
    found = asked = 0
    for conversation in range(6):
        messages = [{"role": "user", "content": f"Story {conversation}: " + "more and more " * 40}]
        for turn in range(4):
            reply = post(body={**BODY, "messages": messages}).json()
            usage = reply["usage"]
            if turn:
                found += usage["prompt_tokens_details"]["cached_tokens"]
                asked += usage["prompt_tokens"]
            messages += [reply["choices"][0]["message"], {"role": "user", "content": "And then?"}]
    assert found >= 0.7 * asked


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.usefixtures("serving")
def test_a_replica_goes_while_replies_are_streamed(sent: signal.Signals) -> None:
    """Begun replies of this replica end with an error, and all others are whole."""
    until(are_idle)
    whole, error, _ = streamed(LONG)
    assert not error
    threads = ThreadPoolExecutor(30)
    has_begun = threading.Semaphore(0)
    used_s = {pid: cpu_s(pid) for pid in replicas()}
    begun = [threads.submit(streamed, LONG, has_begun) for _ in range(6)]
    for _ in range(4):
        assert has_begun.acquire(timeout=60)
    victim = max(used_s, key=lambda pid: cpu_s(pid) - used_s[pid])
    os.kill(victim, sent)
    killed_at = time.monotonic()
    late = [threads.submit(streamed, BODY) for _ in range(12)]
    results = [one.result() for one in begun]
    short = [one.result() for one in late]
    if sent == signal.SIGSTOP:
        os.kill(victim, signal.SIGCONT)
    assert all(whole.startswith(text) for text, _, _ in results)
    broken = [(text, ended_at) for text, error, ended_at in results if error]
    assert 1 <= len(broken) < 6
    assert all(text for text, _ in broken)
    assert max(ended_at for _, ended_at in broken) - killed_at < SLOW_S
    assert all(text == whole for text, error, _ in results if not error)
    assert [error for _, error, _ in short if error] == []
    assert len({text for text, _, _ in short}) == 1
    until(lambda: len(replicas()) == 3)
    assert post().status_code == 200


@pytest.mark.usefixtures("serving")
def test_a_replica_is_killed_under_load() -> None:
    first = post()
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


@pytest.mark.usefixtures("serving")
def test_the_controller_is_killed() -> None:
    until(are_idle)
    whole, _, _ = streamed(LONG)
    with ThreadPoolExecutor(12) as threads:
        has_begun = threading.Semaphore(0)
        begun = [threads.submit(streamed, LONG, has_begun) for _ in range(4)]
        assert has_begun.acquire(timeout=60)
        [controller] = processes("ServeController")
        os.kill(controller, signal.SIGKILL)
        late = [threads.submit(streamed, BODY) for _ in range(8)]
        assert [one.result()[:2] for one in begun] == [(whole, "")] * 4
        assert [one.result()[1] for one in late] == [""] * 8
    until(lambda: len(processes("ServeController")) == 1)
    assert post().status_code == 200


def test_a_client_that_disconnects_frees_its_request(serving: Any) -> None:
    handle = serving.get_deployment_handle("Quire:demo", "default")

    def num_open() -> float:
        stats = [handle.record_autoscaling_stats.remote().result() for _ in range(12)]
        return max(float(one["open_requests"]) for one in stats)

    headers = {"Authorization": f"Bearer {KEY}"}
    for _ in range(8):
        with httpx.stream(
            "POST", f"{URL}/v1/chat/completions", json={**LONG, "stream": True}, headers=headers
        ) as reply:
            next(reply.iter_bytes())
    until(lambda: num_open() == 0)
    assert are_idle()
