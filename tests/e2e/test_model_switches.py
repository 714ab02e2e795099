"""A thousand switches between two models of one server, of which one at a time fits: memory,
descriptors, processes and files stay as they are, and threads as many as a pool may have."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from processes import proportional_mib
from running_server import RunningServer
from tiny_model import write_tiny_model

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200)]

_WARM, _SWITCHES = 40, int(os.environ.get("QUIRE_TEST_SWITCHES", "1000"))
_SAMPLES = 10
_POOL_THREADS = (os.cpu_count() or 1) + 4
"""Of asyncio's pool. It starts another one whenever a load and an unload overlap."""
_OPTIONS = {"max_model_len": 64, "kv_cache_memory_bytes": 100 << 20}
"""With an engine's own memory, each takes more than half of the 400 MiB."""


@pytest.fixture
def switching(tmp_path: Path) -> Iterator[RunningServer]:
    faulthandler.cancel_dump_traceback_later()  # it takes longer than any other test
    models = [
        {"model": str(write_tiny_model(tmp_path / name)), "name": name, "options": _OPTIONS}
        for name in "ab"
    ]
    file = tmp_path / "models.json"
    file.write_bytes(msgspec.json.encode({"models": models}))
    (tmp_path / "temporary").mkdir()
    options = {"models": file, "port": 0, "model_memory_bytes": "400MiB", "kv_store": False}
    running = RunningServer(options, {}, {"TMPDIR": str(tmp_path / "temporary")})
    yield running.wait_until_serving()
    running.stop()
    assert "Traceback" not in running.log()


def held(server: RunningServer, temporary: Path) -> dict[str, float]:
    """What the server and its processes have."""
    pids = server.family()
    return {
        "server MiB": proportional_mib([server.process.pid]),
        "all MiB": proportional_mib(pids),
        "descriptors": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
        "threads": sum(len(os.listdir(f"/proc/{pid}/task")) for pid in pids),
        "processes": len(pids),
        "temporary files": len(list(temporary.rglob("*"))),
        "shared memory": len(list(Path("/dev/shm").glob("*quire*"))),
    }


def test_a_thousand_switches_leave_nothing(switching: RunningServer, tmp_path: Path) -> None:
    samples, replies = [], set[str]()
    with switching.client() as client:
        for number in range(_WARM + _SWITCHES + 1):
            if number >= _WARM and (number - _WARM) % max(1, _SWITCHES // _SAMPLES) == 0:
                samples.append(held(switching, tmp_path / "temporary"))
                print(number, samples[-1], flush=True)
            body = {"model": "ab"[number % 2], "max_tokens": 3, "temperature": 0}
            body["messages"] = [{"role": "user", "content": "one two"}]
            reply = client.post("/v1/chat/completions", json=body)
            assert reply.status_code == 200, (number, reply.text)
            replies.add(reply.json()["choices"][0]["message"]["content"])
    loads = switching.metrics()
    assert sum(loads[f'quire:model_loads_total{{model_name="{name}"}}'] for name in "ab") == (
        _WARM + _SWITCHES + 1
    )
    assert len(replies) == 1
    first, last = samples[0], samples[-1]
    for name in ("descriptors", "processes", "temporary files", "shared memory"):
        assert last[name] <= first[name], (name, samples)
    assert last["threads"] <= first["threads"] + _POOL_THREADS, samples
    assert last["server MiB"] <= first["server MiB"] + 8, samples
    assert last["all MiB"] <= first["all MiB"] + 16, samples
