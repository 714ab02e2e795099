"""The server of a sweep: started by its command, watched until it is ready, and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import suppress

from quire.errors import BackendError, ConfigError

_POLL_S = 0.5
_STOP_S = 40.0
_TIMEOUT_S = 10.0


class ServerProcess:
    """A server in its own process group. Entering waits until `/health` answers 200."""

    def __init__(
        self, command: Sequence[str], *, shows_output: bool, ready_timeout_s: float
    ) -> None:
        self._command = list(command)
        self._output = None if shows_output else subprocess.DEVNULL
        self._ready_timeout_s = ready_timeout_s
        found = {"--host": "127.0.0.1", "--port": "8000"}
        for index, word in enumerate(command):
            flag, sign, value = word.partition("=")
            if flag in found:
                found[flag] = value if sign else "".join(command[index + 1 : index + 2])
        host = found["--host"].replace("0.0.0.0", "127.0.0.1")
        self._url = f"http://{host}:{found['--port']}"

    def __enter__(self) -> ServerProcess:
        if self._is_ready():
            raise ConfigError(
                f"another server answers at {self._url}; give --serve-cmd a free port"
            )
        # The routes that empty caches are for development.
        environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1"}
        try:
            self._process = subprocess.Popen(
                self._command, start_new_session=True, env=environment,
                stdout=self._output, stderr=self._output,
            )  # fmt: skip
        except OSError as error:
            raise ConfigError(f"--serve-cmd {self._command[0]}: {error.strerror}") from None
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the server and its child processes."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def reset_caches(self) -> None:
        """Clear the prefix cache, so that runs are independent."""
        request = urllib.request.Request(f"{self._url}/reset_prefix_cache", method="POST")
        try:
            urllib.request.urlopen(request, timeout=_TIMEOUT_S).close()
        except OSError as error:
            raise BackendError(
                f"the server's caches cannot be reset ({error}); give a command that does it: "
                "--after-bench-cmd, for example true"
            ) from None

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + self._ready_timeout_s
        while not self._is_ready():
            if self._process.poll() is not None:
                raise BackendError(
                    f"the server ended with code {self._process.returncode}; --show-stdout shows "
                    "its output"
                )
            if time.monotonic() > end:
                raise BackendError(
                    f"the server was not ready after {self._ready_timeout_s:g} seconds "
                    "(--server-ready-timeout)"
                )
            time.sleep(_POLL_S)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/health", timeout=_TIMEOUT_S) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False
