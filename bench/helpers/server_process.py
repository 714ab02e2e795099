"""A server's process as `served.py` sees it: start, send, pause, end."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from helpers.peer_process import PeerError, ProcessGroup
from quire.bench.datasets import SampleRequest
from quire.bench.http_stream import Client
from quire.bench.load import RequestResult, Target, run_load


class Server(ProcessGroup):
    """A started server. Stopped except while it is used."""

    def __init__(
        self, command: list[str], environment: dict[str, str], log: Path, timeout_s: float
    ) -> None:
        """Returns when it is healthy; `{port}` becomes a free one. Raises PeerError."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        words = [word.replace("{port}", str(port)) for word in command]
        begin = time.monotonic()
        super().__init__(words, environment, log, stdout=subprocess.DEVNULL)
        while not self._is_healthy():
            late = time.monotonic() - begin > timeout_s
            if self._process.poll() is not None or late:
                words_left = self.last_words()
                self.close()
                if "PackageNotFoundError" in words_left:
                    words_left += "; install the wheel with pip: an unpacked one has no metadata"
                raise PeerError(f"{command[0]}: {'too slow' if late else 'ended'}: {words_left}")
            time.sleep(0.05)
        self.start_s = time.monotonic() - begin
        with urllib.request.urlopen(f"{self.url}/v1/models") as answer:
            self.model = str(json.load(answer)["data"][0]["id"])
        self.pause()

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def send(
        self, requests: list[SampleRequest], due_s: list[float], concurrency: int | None = None
    ) -> tuple[list[RequestResult], float]:
        """Every request streamed to its end; and the seconds that took. Raises PeerError."""
        self.resume()
        results, seconds = asyncio.run(self._send(requests, due_s, concurrency))
        self.pause()
        for result in results:
            if not result.is_success:
                raise PeerError(f"{self.url}: {result.error}")
        return results, seconds

    async def _send(
        self, requests: list[SampleRequest], due_s: list[float], concurrency: int | None
    ) -> tuple[list[RequestResult], float]:
        client = Client(self.url)
        extra = {"ignore_eos": True, "temperature": 0}
        target = Target(client, "/v1/completions", self.model, extra)
        begin = time.perf_counter()
        results = await run_load(target, requests, due_s, concurrency, lambda _: None)
        seconds = time.perf_counter() - begin
        await client.close()
        return results, seconds
