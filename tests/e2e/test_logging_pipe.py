"""A server whose standard error nobody reads, reads late, or has closed: it serves all the same."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from running_server import engine_options, flags

from .conftest import FAKES

pytestmark = pytest.mark.long
"""Unread pipes take a minute."""

NUM_REQUESTS = 700
"""More lines than a pipe of 64 KiB takes."""
NOISY = (str(FAKES / "noisy_server.py"),)
END_S = 30.0


class Unread:
    """A server process with a pipe for its standard error, read only when a test says so."""

    def __init__(self, model: Path, program: tuple[str, ...] = ("-m", "quire"), **server: Any):
        options = {**engine_options(model), "port": 0, **server}
        self.process = subprocess.Popen(
            [sys.executable, *program, "serve", *flags(options)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "QUIRE_LOG_LEVEL": "INFO"},
        )
        assert self.process.stderr is not None
        self.fd = self.process.stderr.fileno()
        log = b""
        while (match := re.search(rb"at (http\S+), ready", log)) is None:
            piece = os.read(self.fd, 65536)
            assert piece, log
            log += piece
        self.url = match.group(1).decode()

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=END_S)

    def get(self, times: int) -> int:
        """How many requests were answered."""
        with self.client() as client:
            codes = [client.get(f"/v1/models?{number}").status_code for number in range(times)]
        return codes.count(200)

    def rest(self) -> str:
        """All that it has still to say, until its end."""
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_S)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()


StartUnread = Callable[..., Unread]


@pytest.fixture
def start(tiny_model: Path) -> Iterator[StartUnread]:
    servers: list[Unread] = []

    def make(**options: Any) -> Unread:
        servers.append(Unread(tiny_model, **options))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


def _command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_an_unread_log_stops_nothing(start: StartUnread, mode: str) -> None:
    server = start(engine_mode=mode)
    assert server.get(NUM_REQUESTS) == NUM_REQUESTS
    with server.client() as client:
        reply = client.post("/v1/completions", json={"prompt": "a"})
    assert reply.status_code == 200
    assert server.end() == 0


def test_a_log_that_is_read_late_is_whole_and_in_order(start: StartUnread) -> None:
    server = start()
    assert server.get(NUM_REQUESTS) == NUM_REQUESTS
    server.process.send_signal(signal.SIGTERM)
    log = server.rest()
    assert server.process.wait(END_S) == 0
    assert log.count("GET /v1/models") == NUM_REQUESTS
    assert "missing" not in log
    assert log.rstrip().endswith("Shut down.")


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_warnings_and_other_loggers_stop_nothing(start: StartUnread, mode: str) -> None:
    """Each request makes every source of noise speak at length; so does each step's process."""
    server = start(program=NOISY, engine_mode=mode)
    with server.client() as client:
        for _ in range(100):
            reply = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
            assert reply.status_code == 200
    server.process.send_signal(signal.SIGTERM)
    log = server.rest()
    assert server.process.wait(END_S) == 0
    for source in ("warning", "uvicorn", "asyncio", "other", "print", "thread", "engine"):
        assert f"noise of {source}" in log


def _with_a_dead_engine(start: StartUnread) -> Unread:
    server = start(engine_mode="process")
    assert server.get(NUM_REQUESTS) == NUM_REQUESTS
    children = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    pids = [int(pid) for path in children for pid in path.read_text().split()]
    (engine_pid,) = [pid for pid in pids if b"process_main" in _command_line(pid)]
    os.kill(engine_pid, signal.SIGKILL)
    return server


def test_the_cause_of_death_is_the_last_line_of_an_unread_log(start: StartUnread) -> None:
    server = _with_a_dead_engine(start)
    time.sleep(1.0)
    assert "killed by signal 9" in server.rest().splitlines()[-1]
    assert server.process.wait(END_S) == 1


def test_a_death_that_nobody_reads_of_is_one_within_a_bounded_time(start: StartUnread) -> None:
    server = _with_a_dead_engine(start)
    assert server.process.wait(END_S) == 1


def test_a_log_whose_reader_is_gone(start: StartUnread) -> None:
    server = start()
    assert server.process.stderr is not None
    server.process.stderr.close()
    assert server.get(50) == 50
    assert server.end() == 0
