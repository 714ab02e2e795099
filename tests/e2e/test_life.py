"""Beginnings and ends: drain, kill, stop, crash, and what is left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from processes import command_line, is_alive

from .conftest import RunningServer, StartServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="relies on /proc")
DEMO = Path(__file__).parents[2] / "src" / "quire" / "demo_model"
LONG = {"prompt": "abc", "max_tokens": 700, "ignore_eos": True}
ENDLESS = {**LONG, "max_tokens": 2000, "n": 32, "temperature": 1.0}


def _in_flight(server: RunningServer) -> bool:
    with server.client() as client:
        return client.get("/load").json()["server_load"] > 0


PHASES = ("interpreter and imports", "configuration", "application", "model")
"""What `quire serve` goes through one after the other; others in its log are parts of these."""


def test_the_phases_of_a_start_add_up(start_server: StartServer) -> None:
    """From the process's start to the first streamed token nothing takes time unnamed."""
    begin = time.monotonic()
    server = start_server(engine={"model": DEMO, "dtype": "auto", "backend": "auto"})
    ready = time.monotonic()
    body = {"prompt": "What is", "max_tokens": 2, "stream": True}
    with server.client() as client, client.stream("POST", "/v1/completions", json=body) as reply:
        next(reply.iter_lines())
        end = time.monotonic()
    told = dict(re.findall(r"\] ([a-z ]+): ([\d.]+) s$", server.log(), re.MULTILINE))
    sum_s = sum(float(told[name]) for name in PHASES) + end - ready
    assert abs(end - begin - sum_s) < 0.3 + 0.2 * (end - begin), server.log()


def test_sigterm_lets_requests_finish_and_refuses_new_ones(start_server: StartServer) -> None:
    server = start_server()
    with ThreadPoolExecutor(1) as pool, server.client() as client, server.client() as other:
        running = pool.submit(lambda: client.post("/v1/completions", json=LONG))
        server.until(lambda: _in_flight(server))
        server.signal(signal.SIGTERM)
        server.until(lambda: "Shutting down" in server.log())
        refused = other.post("/v1/completions", json={"prompt": "a"})
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        assert other.get("/ready").status_code == 503
        assert other.get("/live").status_code == 200
        reply = running.result(30)
    assert reply.status_code == 200
    assert reply.json()["usage"]["completion_tokens"] == LONG["max_tokens"]
    assert server.wait() == 0


@pytest.mark.long
def test_sigterm_lets_requests_finish_that_are_not_in_the_engine_yet(
    start_server: StartServer, tmp_path: Path
) -> None:
    (tmp_path / "slow.jinja").write_text(
        "{% set t = 'x' * 10000000 %}{% for _ in range(60) %}{% if t|upper == 'a' %}{% endif %}"
        "{% endfor %}{{ messages[0].content }}"
    )
    engine = {"chat_template": str(tmp_path / "slow.jinja")}
    server = start_server(engine, engine_mode="thread", template_timeout=60)
    body = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 5}
    with ThreadPoolExecutor(1) as pool, server.client() as client:
        running = pool.submit(lambda: client.post("/v1/chat/completions", json=body))
        time.sleep(2)
        server.signal(signal.SIGTERM)
        server.until(lambda: "Shutting down: 1 requests" in server.log())
        assert not running.done()
        assert running.result(60).status_code == 200
    assert server.wait() == 0


def test_a_second_signal_ends_at_once(start_server: StartServer) -> None:
    server = start_server()
    lines: list[str] = []

    def read() -> None:
        body = {**ENDLESS, "stream": True}
        with server.client() as client, client.stream("POST", "/v1/completions", json=body) as r:
            lines.extend(line for line in r.iter_lines() if line)

    reader = threading.Thread(target=read)
    reader.start()
    server.until(lambda: _in_flight(server))
    server.signal(signal.SIGTERM)
    server.until(lambda: "Shutting down" in server.log())
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    reader.join(30)
    assert lines[-1] == "data: [DONE]"
    ends = [json.loads(line[6:])["choices"][0]["finish_reason"] for line in lines[-33:-1]]
    assert set(ends) == {"abort"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("delay_s", [0.3, 0.5, 0.7])  # before, Python itself is starting
def test_a_signal_while_loading_ends_at_once(
    start_server: StartServer, number: signal.Signals, delay_s: float
) -> None:
    server = start_server(wait=False)
    time.sleep(delay_s)
    server.signal(number)
    assert server.wait() in (0, 130, -number)
    assert "Traceback" not in server.log()


def test_a_signal_while_loading_leaves_no_files(
    start_server: StartServer, tiny_model: Path, tmp_path: Path
) -> None:
    scratch, models = tmp_path / "scratch", tmp_path / "models.json"
    scratch.mkdir()
    models.write_text(json.dumps({"models": [{"model": str(tiny_model), "preload": True}]}))
    engine = {"model": None, "served_model_name": None, "models": models}
    server = start_server(engine, env={"TMPDIR": str(scratch)}, wait=False)
    server.until(lambda: "tokenizer: " in server.log())  # it has begun to load the model
    assert list(scratch.iterdir())  # turns, and for a moment the engine's sockets
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert "Stopped while loading" in server.log()
    assert not list(scratch.iterdir())


def test_the_end_does_not_wait_for_a_model_that_is_being_loaded(
    start_server: StartServer, tiny_model: Path, tmp_path: Path
) -> None:
    models, hold = tmp_path / "models.json", tmp_path / "hold"
    both = [{"model": str(tiny_model), "name": name} for name in "ab"]
    models.write_text(json.dumps({"models": [{**both[0], "preload": True}, both[1]]}))
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        f"if 'quire.core.process_main' in sys.orig_argv and os.path.exists({str(hold)!r}):\n"
        "    time.sleep(600)\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    engine = {"model": None, "served_model_name": None, "models": models}
    server = start_server(engine, env={"PYTHONPATH": path})
    loaded = server.engine_pid()
    hold.touch()

    def loading() -> list[int]:
        pids = [pid for pid in server.children() if "process_main" in command_line(pid)]
        return [pid for pid in pids if pid != loaded]

    with ThreadPoolExecutor(1) as pool, server.client() as client:
        waiting = pool.submit(lambda: client.post("/v1/completions", json={**LONG, "model": "b"}))
        (pid,) = server.until(loading)
        server.signal(signal.SIGTERM)
        assert waiting.result(30).status_code == 503
        assert server.wait(30) == 0
    server.until(lambda: not is_alive(pid))


def test_sigkill_leaves_no_engine_behind(start_server: StartServer) -> None:
    server = start_server(engine_mode="process")
    engine_pid = server.engine_pid()
    server.signal(signal.SIGKILL)
    server.process.wait()
    server.until(lambda: not is_alive(engine_pid))


def test_an_unix_socket_is_private_and_gone_afterwards(
    start_server: StartServer, tmp_path: Path
) -> None:
    path = tmp_path / "q.sock"
    server = start_server(uds=str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    transport = httpx.HTTPTransport(uds=str(path))
    with httpx.Client(transport=transport, base_url="http://quire") as client:
        assert client.get("/ready").status_code == 200
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert not path.exists()


def test_a_port_in_use_is_one_line(start_server: StartServer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = start_server(wait=False, port=taken.getsockname()[1])
        assert server.wait() == 1
    assert "Address already in use" in server.lines[-1]
    assert "Traceback" not in server.log()


def test_what_prevents_loading_is_the_last_line(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(engine={"model": str(tmp_path / "missing")}, wait=False)
    assert server.wait() == 1
    assert "missing" in server.lines[-1]
    assert "Traceback" not in server.log()


def python_path_with(folder: Path) -> dict[str, str]:
    """The environment of a server that imports from this folder first."""
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


def test_a_start_without_threads_is_told_as_the_last_line(
    start_server: StartServer, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import threading\n"
        "start = threading.Thread.start\n"
        "def checked(thread):\n"
        "    if thread.name == 'quire-engine':\n"
        '        raise RuntimeError("can\'t start new thread")\n'
        "    start(thread)\n"
        "threading.Thread.start = checked\n"
    )
    server = start_server(wait=False, engine_mode="thread", env=python_path_with(tmp_path))
    server.may_log_tracebacks = True
    assert server.wait() == 1
    assert "RuntimeError: can't start new thread" in server.lines[-1]


def test_a_start_with_too_few_open_files_is_told_as_the_last_line(
    start_server: StartServer, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import errno, os, select\n"
        "def epoll(*_):\n"
        "    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))\n"
        "select.epoll = epoll\n"
    )
    server = start_server(wait=False, engine_mode="thread", env=python_path_with(tmp_path))
    assert server.wait() == 1
    assert "cannot take connections: [Errno 24] Too many open files" in server.lines[-1]


def test_an_open_bind_without_a_key_is_refused(start_server: StartServer) -> None:
    server = start_server(wait=False, host="0.0.0.0")
    assert server.wait() == 1
    assert "--api-key" in server.lines[-1]


def write_certificate(directory: Path) -> tuple[Path, Path]:
    """A new key and its certificate, under the same names each time."""
    key, certificate = directory / "key.pem", directory / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    return key, certificate


def test_new_certificates_are_read(start_server: StartServer, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, certificate = write_certificate(tmp_path)
    files = {"ssl_keyfile": str(key), "ssl_certfile": str(certificate)}
    server = start_server(enable_ssl_refresh=True, **files)

    def is_served() -> bool:
        context = ssl.create_default_context(cafile=str(certificate))
        try:
            with httpx.Client(base_url=server.url, verify=context) as client:
                return client.get("/health").status_code == 200
        except httpx.ConnectError:
            return False

    assert is_served()
    write_certificate(tmp_path)
    assert not is_served()
    server.until(is_served)
    certificate.write_text("no certificate")
    server.until(lambda: "the old ones stay" in server.log())


def test_tls_serves_and_wrong_files_are_one_line(start_server: StartServer, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, certificate = write_certificate(tmp_path)
    server = start_server(ssl_keyfile=str(key), ssl_certfile=str(certificate), api_key=["k"])
    assert server.url.startswith("https://")
    context = ssl.create_default_context(cafile=str(certificate))
    with httpx.Client(base_url=server.url, verify=context) as client:
        assert client.get("/ready").status_code == 200
        assert client.get("/v1/models").status_code == 401
        right = {"Authorization": "Bearer k"}
        assert client.get("/v1/models", headers=right).status_code == 200
    wrong = start_server(wait=False, ssl_keyfile=str(certificate), ssl_certfile=str(certificate))
    assert wrong.wait() == 1
    assert "TLS" in wrong.lines[-1]
    assert "Traceback" not in wrong.log()


@pytest.mark.long
def test_a_stream_of_the_live_view_tells_the_models_and_holds_nothing_up(
    start_server: StartServer,
) -> None:
    """It needs the key, is no work in flight, and ends when the server does."""
    server = start_server(api_key="sesame")
    headers = {"Accept": "text/event-stream", "Authorization": "Bearer sesame"}
    with server.client(headers=headers) as client, server.client() as other:
        assert other.get("/quire/live", headers={**headers, "Authorization": ""}).status_code == 401
        cards = client.get("/v1/models").json()["data"]
        with client.stream("GET", "/quire/live") as reply:
            events = (json.loads(line[6:]) for line in reply.iter_lines() if line)
            first, second = next(events), next(events)
            metrics = other.get("/metrics", headers=headers).text
            assert f'quire:device_info{{backend="cpu",device="{first["device"]}"' in metrics
            assert [card["id"] for card in first["models"]] == [card["id"] for card in cards]
            assert first["models"][0]["max_model_len"] == cards[0]["max_model_len"]
            assert "models" not in second  # they have not changed
            assert other.get("/load", headers=headers).json()["server_load"] == 0
            server.signal(signal.SIGTERM)
            for _ in events:
                pass
            assert server.wait() == 0
