"""In the place of vLLM's tests/utils.py: servers, and the decorators of tests of text."""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import anthropic
import httpx
import openai
import pytest
from tests.placeholders import of_tests as __getattr__  # noqa: F401 - all other names

Test = TypeVar("Test", bound=Callable[..., Any])
VLLM_PATH = Path(__file__).parents[1]
ASSETS = VLLM_PATH / "assets"
"""Pictures of the tests."""
_START_S = 90
_END_S = 20


class RemoteOpenAIServer:
    """`serve` in a process of its own."""

    DUMMY_API_KEY = "token-abc123"

    def __init__(
        self,
        model: str,
        vllm_serve_args: list[str],
        *,
        env_dict: dict[str, str] | None = None,
        seed: int | None = 0,
        auto_port: bool = True,
        max_wait_seconds: float | None = None,
        override_hf_configs: dict[str, Any] | None = None,
    ) -> None:
        del max_wait_seconds, override_hf_configs
        args = _of_text([str(each) for each in vllm_serve_args])
        self.show_hidden_metrics = any("show-hidden-metrics" in arg for arg in args)
        self.uds = args[args.index("--uds") + 1] if "--uds" in args else None
        self.host = "127.0.0.1"
        self.port = int(args[args.index("--port") + 1]) if "--port" in args else _free_port()
        if auto_port and self.uds is None and "--port" not in args:
            args += ["--port", str(self.port)]
        if any("limit-mm-per-prompt" in arg for arg in args):
            args += ["--allowed-local-media-path", str(ASSETS)]
            ASSETS.mkdir(exist_ok=True)
        if seed is not None and "--seed" not in args:
            args += ["--seed", str(seed)]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self.proc = self._start(model, args, {**os.environ, **(env_dict or {})})
        self._wait()

    def _start(self, model: str, args: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "quire.vllm", "serve", model, *args],
            env=env,
            stdout=self._log,
            stderr=self._log,
        )

    def _wait(self) -> None:
        end = time.monotonic() + _START_S
        transport = httpx.HTTPTransport(uds=self.uds) if self.uds else None
        with httpx.Client(transport=transport, timeout=5, verify=False) as client:
            while time.monotonic() < end and self.proc.poll() is None:
                try:
                    if client.get(self.url_for("health")).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                time.sleep(0.3)
        self._stop()
        self._log.seek(0)
        lines = self._log.read().splitlines() or [""]
        raise RuntimeError(f"the server did not start: {lines[-1]}")

    def _stop(self) -> None:
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGTERM)
            try:
                self.proc.wait(_END_S)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait()

    def _get_process_termination_timeout(self) -> float:
        return _END_S

    def __enter__(self) -> RemoteOpenAIServer:
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    @property
    def url_root(self) -> str:
        return f"http://{self.host}:{self.port}"

    def url_for(self, *parts: str) -> str:
        return "/".join((self.url_root, *(part.strip("/") for part in parts if part)))

    def get_client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(**self._of_client(options))

    def get_async_client(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**self._of_client(options))

    def get_client_anthropic(self, **options: Any) -> anthropic.Anthropic:
        return anthropic.Anthropic(**self._of_client(options, self.url_root))

    def get_async_client_anthropic(self, **options: Any) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(**self._of_client(options, self.url_root))

    def _of_client(self, options: dict[str, Any], url: str | None = None) -> dict[str, Any]:
        return {
            "base_url": url or self.url_for("v1"),
            "api_key": self.DUMMY_API_KEY,
            "max_retries": 0,
            "timeout": 120,
            **options,
        }


RemoteVLLMServer = RemoteOpenAIServer


class _Forked:
    """A process made by fork, with the methods of `subprocess.Popen` that are used here."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self.pid = process.pid

    def poll(self) -> int | None:
        self._process.join(0)
        code: int | None = self._process.exitcode
        return code

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> None:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("the server", timeout or 0)

    def kill(self) -> None:
        self._process.kill()


class RemoteOpenAIServerCustom(RemoteOpenAIServer):
    """A server that a function starts, in a process made by fork."""

    def __init__(
        self,
        model: str,
        vllm_serve_args: list[str],
        child_process_fxn: Callable[[dict[str, str] | None, str, list[str]], None],
        **options: Any,
    ) -> None:
        self._begin = child_process_fxn
        super().__init__(model, vllm_serve_args, **options)

    def _start(self, model: str, args: list[str], env: dict[str, str]) -> Any:
        process = get_context("fork").Process(target=self._begin, args=(env, model, args))
        process.start()
        return _Forked(process)


class RemoteLaunchRenderServer(RemoteOpenAIServer):
    """A server's render routes; there is none that has no other."""


def _of_text(args: list[str]) -> list[str]:
    """Options of a server without those of pooling models, so that the tests of what has nothing to
    do with them can run."""
    kept: list[str] = []
    is_left_out = False
    for arg in args:
        if arg.startswith("-"):
            is_left_out = arg == "--runner"
        if not is_left_out:
            kept.append(arg)
    return kept


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def fork_new_process_for_each_test(test: Test) -> Test:
    """In this process: every file with an engine has one of its own."""
    return test


def create_new_process_for_each_test(method: str | None = None) -> Callable[[Test], Test]:
    """The same."""
    del method
    return fork_new_process_for_each_test


def spawn_new_process_for_each_test(test: Test) -> Test:
    """In this process; what a test raises is a RuntimeError, as if it came from another."""

    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> Any:
        try:
            return test(*args, **named)
        except Exception as error:
            raise RuntimeError(f"the test failed: {error}") from error

    made: Test = run  # type: ignore[assignment]
    return made


single_gpu_only = fork_new_process_for_each_test


def requires_spawn_multiprocessing() -> bool:
    """Not on a CPU."""
    return False


def wait_for_gpu_memory_to_clear(**options: Any) -> None:
    """There is no GPU."""
    del options


ROCM_EXTRA_ARGS: list[str] = []
ROCM_ENV_OVERRIDES: dict[str, str] = {}


def multi_gpu_only(*, num_gpus: int = 2) -> Any:
    return pytest.mark.skip(reason=f"needs {num_gpus} GPUs")


def multi_gpu_test(*, num_gpus: int) -> Any:
    return pytest.mark.skip(reason=f"needs {num_gpus} GPUs")


def large_gpu_test(*, min_gb: int) -> Any:
    return pytest.mark.skip(reason=f"needs a GPU with {min_gb} GB")


def large_gpu_mark(min_gb: int) -> Any:
    return pytest.mark.skip(reason=f"needs a GPU with {min_gb} GB")


def multi_gpu_marks(*, num_gpus: int) -> list[Any]:
    return [multi_gpu_test(num_gpus=num_gpus)]


def requires_fp8(test: Test) -> Test:
    """CPUs have no FP8 arithmetic."""
    marked: Test = pytest.mark.skip(reason="needs FP8")(test)
    return marked
