"""What only a process can suffer: being killed, being stopped, losing its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from processes import is_alive

from quire.errors import ConfigError, EngineDeadError
from quire.logits_processors import LogitsProcessor

from .conftest import Recorder, make_config, make_process_client, make_request

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="relies on /proc")


async def test_what_cannot_be_sent_is_refused_by_name() -> None:
    client = make_process_client(make_config())
    try:
        client.attach(asyncio.get_running_loop(), Recorder().listener())
        with pytest.raises(ConfigError, match="cannot be sent to an engine process"):
            await client.call("echo", print)
        with pytest.raises(ConfigError, match="cannot be sent to an engine process, or back"):
            await client.call("secret")
        assert await client.call("echo", 1) == [[1], {}]
    finally:
        client.shutdown()


def test_a_class_without_a_name_is_refused() -> None:
    class Local(LogitsProcessor):
        pass

    config = make_config()
    config = replace(config, model=replace(config.model, logits_processors=(Local,)))
    with pytest.raises(ConfigError, match=r"Local cannot be sent to an engine process.*'thread'"):
        make_process_client(config)


def _wait_gone(pid: int, timeout_s: float) -> bool:
    end = time.monotonic() + timeout_s
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not is_alive(pid)


@pytest.mark.parametrize(
    ("number", "cause"), [(signal.SIGKILL, "killed by signal 9"), (signal.SIGSTOP, "SIGSTOP")]
)
async def test_a_killed_or_stopped_engine_is_noticed(number: signal.Signals, cause: str) -> None:
    client, recorder = make_process_client(make_config()), Recorder()
    client.attach(asyncio.get_running_loop(), recorder.listener())
    client.add_request(make_request("a", [7], max_tokens=100_000))
    await recorder.until(lambda: recorder.tokens_of("a"))
    os.kill(client.pid, number)
    await recorder.until(lambda: recorder.deaths)
    assert cause in str(recorder.deaths[0])
    client.shutdown()
    assert not is_alive(client.pid)


def test_an_engine_that_is_stopped_while_it_starts_is_noticed() -> None:
    with pytest.raises(EngineDeadError, match="stopped by a signal"):
        make_process_client(make_config("stops"))


def test_a_module_path_may_hold_what_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [Path("/nowhere"), *sys.path])
    client = make_process_client(make_config())
    assert is_alive(client.pid)
    client.shutdown()


@pytest.mark.timeout(30)
def test_a_process_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ConfigError, match="cannot be started"):
        make_process_client(make_config())


def test_news_that_cannot_be_read_are_a_death(monkeypatch: pytest.MonkeyPatch) -> None:
    client = make_process_client(make_config())
    unreadable = SimpleNamespace(decode=msgspec.msgpack.Decoder(int).decode)
    monkeypatch.setattr("quire.core.process_host.event_decoder", unreadable)
    end = time.monotonic() + 60
    while client.health().state != "dead" and time.monotonic() < end:
        time.sleep(0.02)
    assert "listening to it failed: ValidationError" in client.health().reason
    assert _wait_gone(client.pid, 60)
    client.shutdown()


def test_no_file_is_left_once_the_engine_is_up(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path_factory.mktemp("t")  # a short name: the path of a socket is bounded
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    client = make_process_client(make_config())
    assert not [*directory.glob("quire-*/commands")]
    client.shutdown()


FAKES = Path(__file__).parents[2] / "fakes"

_PARENT = """
import sys, time
sys.path[:0] = [{here!r}, {fakes!r}]
from conftest import make_config, make_process_client
client = make_process_client(make_config())
print(client.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("is_stopped", [False, True])
def test_no_engine_outlives_its_parent(is_stopped: bool) -> None:
    script = _PARENT.format(here=str(Path(__file__).parent), fakes=str(FAKES))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        engine_pid = int(parent.stdout.readline())
        assert is_alive(engine_pid)
        if is_stopped:
            os.kill(engine_pid, signal.SIGSTOP)
        parent.kill()
        parent.wait()
        assert _wait_gone(engine_pid, 60)
