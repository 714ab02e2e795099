"""An engine that dies, hangs or is stopped: everyone waiting is told within two seconds, the
server says that it is not ready, and ends with the cause as its last line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import is_alive

from quire.config.engine_args import EngineArgs
from quire.weights import PACKED_NAME

from .conftest import FAKES, RunningServer, StartServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="relies on /proc")

TOLD_S = 30.0
"""Two seconds on a machine that is not crowded."""
FAULTY = (str(FAKES / "faulty_server.py"),)
ENDLESS = {"prompt": "abc", "max_tokens": 2000, "ignore_eos": True, "temperature": 1.0}
Fault = Callable[[RunningServer], None]


class Waiting:
    """A client that waits for a reply, whole or streamed, and notes how it ended."""

    def __init__(self, server: RunningServer, stream: bool) -> None:
        self.has_begun = not stream
        self.has_ended = False
        self.status = 0
        self.error: dict[str, Any] = {}
        self._url, self._stream = server.url, stream
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(TOLD_S)

    def _run(self) -> None:
        body = {**ENDLESS, "stream": self._stream}
        with httpx.Client(base_url=self._url, timeout=2 * TOLD_S) as client:
            with client.stream("POST", "/v1/completions", json=body) as reply:
                self.status = reply.status_code
                lines = []
                for line in reply.iter_lines():
                    lines.append(line)
                    self.has_begun = True
            self.has_ended = True
        events = [line.removeprefix("data: ") for line in lines if line and "[DONE]" not in line]
        self.error = json.loads(events[-1]).get("error", {})


def everyone_is_told(server: RunningServer, fault: Fault, cause: str) -> None:
    """Breaks the engine while 12 clients wait for it, and holds the server to its promise."""
    clients = [Waiting(server, stream=index % 2 == 0) for index in range(12)]
    with server.client() as client:
        server.until(lambda: client.get("/load").json()["server_load"] == len(clients))
        server.until(lambda: all(one.has_begun for one in clients))
        fault(server)
        server.until(lambda: client.get("/ready").status_code == 503, timeout_s=TOLD_S)
        for one in clients:
            one.join()
        assert all(one.has_ended for one in clients)
        for index, one in enumerate(clients):
            assert one.status == (200 if index % 2 == 0 else 503)
            assert cause in one.error["message"]
        assert client.get("/health").status_code == 503
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 503
    assert server.wait() == 1
    assert cause in server.lines[-1]


def start_faulty(start_server: StartServer, path: Path, mode: str, **engine: Any) -> RunningServer:
    env = {"FAULT_FILE": str(path)}
    engine = {"backend": "cpu", "num_threads": 2, **engine}
    server = start_server(engine=engine, env=env, program=FAULTY, engine_mode=mode)
    server.may_log_tracebacks = True
    return server


FAULTS = {
    "raise": "RuntimeError: the step failed on purpose",
    "hang": "a step is stuck",
    "loop": "a step is stuck",
}
IN_SHORT = {("thread", "hang"), ("process", "raise")}
"""What every run of the tests tries; the others take as long and differ little."""


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("mode", "fault"),
    [
        pytest.param(
            mode, fault, marks=[] if (mode, fault) in IN_SHORT else [pytest.mark.long]
        )
        for mode in ("thread", "process")
        for fault in FAULTS
    ],
)  # fmt: skip
def test_a_step_that_fails(
    start_server: StartServer, tmp_path: Path, mode: str, fault: str
) -> None:
    server = start_faulty(start_server, tmp_path / "fault", mode)

    def break_it(_: RunningServer) -> None:
        (tmp_path / "fault").write_text(fault)

    everyone_is_told(server, break_it, FAULTS[fault])


@pytest.mark.sweep(1)
@pytest.mark.parametrize(
    ("number", "cause"), [(signal.SIGKILL, "killed by signal 9"), (signal.SIGSTOP, "SIGSTOP")]
)
def test_an_engine_process_that_is_killed_or_stopped(
    start_server: StartServer, tmp_path: Path, number: signal.Signals, cause: str
) -> None:
    server = start_faulty(start_server, tmp_path / "fault", "process")
    engine_pid = server.engine_pid()
    everyone_is_told(server, lambda _: os.kill(engine_pid, number), cause)
    assert not is_alive(engine_pid)


@pytest.fixture(scope="module")
def packed_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_model import write_tiny_model

    from quire.planning.quantize import quantize_model

    directory = tmp_path_factory.mktemp("packed")
    checkpoint = write_tiny_model(directory / "checkpoint")
    return quantize_model(EngineArgs(str(checkpoint)), directory / "packed").path


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("mode", "size"), [("thread", 0), ("process", 8192)])
def test_packed_weights_that_are_cut_short(
    start_server: StartServer, packed_model: Path, tmp_path: Path, mode: str, size: int
) -> None:
    model = Path(shutil.copytree(packed_model, tmp_path / "model"))
    server = start_faulty(start_server, tmp_path / "fault", mode, model=model, dtype="auto")
    everyone_is_told(
        server,
        lambda _: os.truncate(model / PACKED_NAME, size),
        f"CheckpointError: {model / PACKED_NAME}: the file was cut short while in use",
    )


@pytest.mark.long
def test_packed_weights_that_are_written_to(
    start_server: StartServer, packed_model: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(packed_model, tmp_path / "model"))
    os.utime(model / PACKED_NAME, (1e9, 1e9))
    server = start_faulty(start_server, tmp_path / "fault", "thread", model=model, dtype="auto")

    def write(_: RunningServer) -> None:
        with (model / PACKED_NAME).open("r+b") as file:
            file.seek(5000)
            file.write(b"other weights")

    everyone_is_told(server, write, f"{model / PACKED_NAME}: the file was written to while in use")


def test_a_failure_of_the_device_ends_the_requests_of_its_step_alone(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_faulty(start_server, tmp_path / "fault", "thread")
    clients = [Waiting(server, stream) for stream in (False, True)]
    server.until(lambda: server.live()["requests"]["running"] == 2)
    (tmp_path / "fault").write_text("backend error")
    for one in clients:
        one.join()
        assert "the device failed on purpose" in one.error["message"]
    with server.client() as client:
        assert client.get("/ready").status_code == 200
        body = {"prompt": "a", "max_tokens": 3, "ignore_eos": True}
        reply = client.post("/v1/completions", json=body).raise_for_status().json()
    assert reply["usage"]["completion_tokens"] == 3
    server.until_idle()


def _goes_on_after(server: RunningServer, pause: Callable[[], None], max_tokens: int) -> None:
    """A stream that is under way during `pause` ends well, and nobody is declared dead."""
    body = {**ENDLESS, "max_tokens": max_tokens}
    with ThreadPoolExecutor(1) as pool, server.client() as client:
        running = pool.submit(httpx.post, f"{server.url}/v1/completions", json=body, timeout=280)
        server.until(lambda: client.get("/load").json()["server_load"] == 1)
        pause()
        reply = running.result(280)
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["completion_tokens"] == max_tokens
    assert "died" not in server.log()


@pytest.mark.sweep(1)
@pytest.mark.parametrize("mode", ["thread", "process"])
def test_a_server_that_is_stopped_and_continued_goes_on(
    start_server: StartServer, mode: str
) -> None:
    server = start_server(engine_mode=mode)
    pids = [server.process.pid, *server.children()]

    def pause() -> None:
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                os.kill(pid, number)
            time.sleep(2.0)  # longer than an engine may be silent

    _goes_on_after(server, pause, 600)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["thread", "process"])
def test_a_crowded_machine_is_no_death(start_server: StartServer, mode: str) -> None:
    """Eight times as many spinning processes as cores, the server behind them in line."""
    server = start_server(engine={"backend": "cpu"}, engine_mode=mode)
    for pid in (server.process.pid, *server.children()):
        os.setpriority(os.PRIO_PROCESS, pid, 10)
    spinners = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(8 * (os.cpu_count() or 1))
    ]
    try:
        _goes_on_after(server, lambda: time.sleep(20), 300)
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
