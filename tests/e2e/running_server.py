"""A real server in a process of its own."""

from __future__ import annotations

import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from processes import children_of, command_line, resident_mib

_SERVING = re.compile(r"Serving (.+) at (\S+), ready")
_START_S = 120.0


def flags(options: dict[str, Any]) -> list[str]:
    """Options as the command line has them."""
    words = []
    for name, value in options.items():
        if value is None:
            continue
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif isinstance(value, (list, tuple)):
            words += [flag, *map(str, value)]
        else:
            words += [flag, str(value)]
    return words


class RunningServer:
    """A server process: its address, its log, its end.

    Bounds of time are there to end a test whose server hangs, on a slow machine too.
    """

    def __init__(
        self,
        engine: dict[str, Any],
        server: dict[str, Any],
        env: dict[str, str] | None = None,
        program: tuple[str, ...] = ("-m", "quire"),
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *program, "serve", *flags({**engine, **server})],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "QUIRE_LOG_LEVEL": "INFO", **(env or {})},
        )
        self.may_log_tracebacks = False
        self.lines: list[str] = []
        self.url = ""
        self._found: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_until_serving(self) -> RunningServer:
        """Returns once the model is loaded."""
        url = self._found.get(timeout=_START_S)
        assert url is not None, self.log()
        self.url = url
        return self

    def client(self, **options: Any) -> httpx.Client:
        """An HTTP client for it."""
        return httpx.Client(base_url=self.url, timeout=60, **options)

    def metrics(self, **options: Any) -> dict[str, float]:
        """`/metrics`, by the whole series name. `options`: of the client."""
        with self.client(**options) as client:
            text = client.get("/metrics").raise_for_status().text
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def live(self) -> dict[str, Any]:
        """The live view, as of now."""
        with self.client() as client:
            return client.get("/quire/live").raise_for_status().json()

    def until(self, condition: Callable[[], Any], timeout_s: float = 60.0) -> Any:
        """Waits for a condition that other processes bring about."""
        end = time.monotonic() + timeout_s
        while not (value := condition()):
            assert time.monotonic() < end, self.log()
            time.sleep(0.02)
        return value

    def until_idle(self, timeout_s: float = 60.0) -> None:
        """Waits until no request runs and no block is held."""

        def is_idle() -> bool:
            live = self.live()
            kv = live["kv"]
            return live["requests"]["running"] == 0 and kv["used"] + kv["shared"] == 0

        self.until(is_idle, timeout_s)

    def check_leaving(self, form: httpx.Request, num_first: int, num: int, pause_s: float) -> None:
        """Clients send a form, or half of it, and leave. After the first of them, the memory of the
        process does not grow."""
        body, kind = form.read(), form.headers["content-type"]
        head = (
            f"POST {form.url.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        address = httpx.URL(self.url)
        before = 0.0
        for at in range(num_first + num):
            if at == num_first:
                self.until_idle()
                before = resident_mib(self.process.pid)
            sent = (head + body)[: None if at % 2 else len(body) // 2]
            with socket.create_connection((address.host, address.port)) as connection:
                connection.sendall(sent)
                time.sleep(pause_s * (at % 4))
        self.until_idle()
        time.sleep(2)
        assert resident_mib(self.process.pid) - before < 40

    def children(self) -> list[int]:
        """Process ids of its children."""
        return children_of(self.process.pid)

    def family(self) -> list[int]:
        """Process ids of itself, its children and theirs."""
        found = [self.process.pid]
        for pid in found:
            found += children_of(pid)
        return found

    def engine_pid(self) -> int:
        """The process id of an engine that has a process of its own."""
        (pid,) = (pid for pid in self.children() if "process_main" in command_line(pid))
        return pid

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 60.0) -> int:
        """Waits for its end; the exit code."""
        code = self.process.wait(timeout_s)
        self._reader.join(5)
        return code

    def log(self) -> str:
        """All it has said."""
        return "\n".join(self.lines)

    def stop(self) -> None:
        """Ends it, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(5)
        if self.process.stderr is not None:
            self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            match = _SERVING.search(line)
            if match:
                self._found.put(match.group(2))
        self._found.put(None)


def engine_options(model: Path, **changes: Any) -> dict[str, Any]:
    return {
        "model": str(model), "served_model_name": ["tiny", "tiny-alias"], "dtype": "float32",
        "backend": "reference", "num_gpu_blocks_override": 512, **changes,
    }  # fmt: skip


StartServer = Callable[..., RunningServer]
