"""A Ray cluster of two nodes, of which one is in a network namespace: its link goes down in the
middle of replies, and comes back. Needs Ray, iproute2, and the right to make namespaces."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from polling import until
from serve_application import BODY, LONG, SLOW_S, cpu_s, post, replicas, streamed
from test_ray_serve_faults import Serving, descendants

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
_HEAD, _NODE, _PORT = "10.77.60.1", "10.77.60.2", 26390
_SPACE, _LINK = f"quire-{os.getpid()}", f"q{os.getpid()}"
_VARIABLES = (
    ("RAY_AUTH_MODE", "token"), ("RAY_worker_niceness", "0"),
    ("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60"),
    ("RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S", "60"),
)  # fmt: skip
_DOWN_S = 6.0
_OPTIONS = ["--block", "--num-cpus=1", f"--object-store-memory={80 << 20}", "--disable-usage-stats"]


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout


@pytest.fixture
def remote() -> Iterator[int]:
    """An application with a replica on each of two nodes; the process of the remote one."""
    pytest.importorskip("ray")
    try:
        _ip("netns", "add", _SPACE)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces cannot be made: {getattr(error, 'stderr', error)}")
    started: list[subprocess.Popen[bytes]] = []
    serving = None
    patch = pytest.MonkeyPatch()
    try:
        _connect()
        for name, value in (*_VARIABLES, ("QUIRE_TEST_CLUSTER", f"{_HEAD}:{_PORT}")):
            patch.setenv(name, value)
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", *_OPTIONS]
        head = [f"--node-ip-address={_HEAD}", f"--port={_PORT}", '--resources={"head": 1}']
        started.append(_started([*ray, "--head", "--include-dashboard=false", *head]))
        until(_has_head)
        node = [f"--node-ip-address={_NODE}", f"--address={_HEAD}:{_PORT}"]
        started.append(_started(["ip", "netns", "exec", _SPACE, *ray, *node]))
        serving = Serving(2)
        until(lambda: len(replicas()) == 2)
        inside = {int(pid) for pid in _ip("netns", "pids", _SPACE).split()}
        [pid] = inside & set(replicas())
        yield pid
    finally:
        patch.undo()
        if serving is not None:
            serving.close()
        for pid in [pid for one in started for pid in descendants(one.pid)]:
            with suppress(OSError):
                os.kill(pid, 9)
        for one in started:
            one.wait()
        found = Path("/tmp/ray/ray_current_cluster")  # Ray's tools connect to what it names
        if found.exists() and found.read_text().strip() == f"{_HEAD}:{_PORT}":
            found.unlink()
        _ip("netns", "del", _SPACE)
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", _LINK)  # it goes with the namespace


def _has_head() -> bool:
    with suppress(OSError), socket.create_connection((_HEAD, _PORT), timeout=5):
        return True
    return False


def _connect() -> None:
    _ip("link", "add", _LINK, "type", "veth", "peer", "name", "uplink", "netns", _SPACE)
    _ip("addr", "add", f"{_HEAD}/24", "dev", _LINK)
    _ip("link", "set", _LINK, "up")
    _ip("-n", _SPACE, "addr", "add", f"{_NODE}/24", "dev", "uplink")
    for name in ("lo", "uplink"):
        _ip("-n", _SPACE, "link", "set", name, "up")


def _started(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def test_a_node_is_cut_off(remote: int) -> None:
    """Begun replies of its replica end with an error, all others are whole, and it gets requests
    again when its link is up."""
    whole = streamed(LONG)[0]
    short = streamed(BODY)[0]
    has_begun = threading.Semaphore(0)
    with ThreadPoolExecutor(12) as threads:
        begun = [threads.submit(streamed, LONG, has_begun) for _ in range(6)]
        for _ in begun:
            assert has_begun.acquire(timeout=120)
        _ip("link", "set", _LINK, "down")
        down_at = time.monotonic()
        late = [threads.submit(streamed, BODY) for _ in range(6)]
        time.sleep(_DOWN_S)
        _ip("link", "set", _LINK, "up")
        results = [one.result() for one in begun]
        assert [one.result()[:2] for one in late] == [(short, "")] * 6
    broken = [(text, ended_at) for text, error, ended_at in results if error]
    assert 1 <= len(broken) < 6
    assert all(text and whole.startswith(text) for text, _ in broken)
    print(f"errors after {[round(at - down_at, 2) for _, at in broken]} s")
    assert max(at for _, at in broken) - down_at < SLOW_S
    assert all(text == whole for text, error, _ in results if not error)
    used_s = cpu_s(remote)
    until(lambda: _is_used(remote, used_s))
    assert Path(f"/proc/{remote}").exists()


def _is_used(pid: int, used_s: float) -> bool:
    with ThreadPoolExecutor(6) as threads:
        statuses = list(threads.map(lambda _: post(body={**LONG, "max_tokens": 200}), range(6)))
    assert [one.status_code for one in statuses] == [200] * 6
    return cpu_s(pid) - used_s > 0.5
