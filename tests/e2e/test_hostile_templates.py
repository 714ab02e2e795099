"""A chat template that hangs, swells or breaks costs its own requests an error: the server answers
all others meanwhile, keeps its size, and ends when it is told to."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import command_line, is_alive, resident_mib

from .conftest import FAKES, RunningServer, StartServer

if str(FAKES) not in sys.path:
    sys.path.insert(0, str(FAKES))

import hostile_templates

pytestmark = [
    pytest.mark.long,  # tests/unit/chat/test_hostile_templates.py has the same templates
    pytest.mark.skipif(sys.platform != "linux", reason="relies on /proc"),
]

EVERY = hostile_templates.every()
HOSTILE = {
    "shared list, print": "it makes a text of more than 16777216 characters",
    "shared tuple, key": "it makes a text of more than 16777216 characters",
    "space: self-held in itself": "it makes text of a value that holds itself",
    "time: two loops": "it takes more than",
    "time: upper of a long text": "it takes more than",
    "broken: many names": "it takes more than",
    "space: many long texts": "it ",
}
"""Templates, and why each is stopped."""
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
ENDLESS = EVERY["time: upper of a long text"]
_PROMPTLY_S = 20.0
"""Within which a probe is answered; the templates take longer or for ever."""


def with_template(
    start_server: StartServer, tmp_path: Path, text: str, timeout_s: float = 1.0
) -> RunningServer:
    path = tmp_path / "hostile.jinja"
    path.write_text(text)
    return start_server(engine={"chat_template": str(path)}, template_timeout=timeout_s)


def renderers(server: RunningServer) -> list[int]:
    """The process ids of the children that render."""
    return [pid for pid in server.children() if "quire.chat.template_child" in command_line(pid)]


def until_one_renders(server: RunningServer) -> int:
    return server.until(lambda: renderers(server))[0]


def post(server: RunningServer, body: Any, path: str = "/v1/chat/completions") -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=60)


def healthy_during(server: RunningServer, work: Callable[[], Any]) -> Any:
    """The work's result, and a server that was well and prompt all the while."""
    with ThreadPoolExecutor(1) as pool, server.client() as client:
        running = pool.submit(work)
        while not running.done():
            begin = time.monotonic()
            assert client.get("/health").status_code == 200
            assert time.monotonic() - begin < _PROMPTLY_S
            time.sleep(0.01)
        return running.result()


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_hostile_template_costs_its_own_requests(
    start_server: StartServer, tmp_path: Path, name: str
) -> None:
    server = with_template(start_server, tmp_path, EVERY[name])
    completion = {"prompt": "abc", "max_tokens": 3}
    post(server, completion, "/v1/completions").raise_for_status()
    until_one_renders(server)
    before = resident_mib(server.process.pid)

    def attack() -> list[httpx.Response]:
        with ThreadPoolExecutor(3) as pool:
            return list(pool.map(lambda _: post(server, CHAT), range(3)))

    for reply in healthy_during(server, attack):
        error = reply.json()["error"]
        if reply.status_code == 503:  # its turn did not come in time
            assert "has waited 6 s for the chat template" in error["message"]
        else:
            assert reply.status_code == 400
            assert error["message"].startswith("the chat template 'default' was stopped: it ")
            assert HOSTILE[name] in error["message"]
    reply = post(server, completion, "/v1/completions").raise_for_status()
    assert reply.json()["usage"]["completion_tokens"] == 3
    assert resident_mib(server.process.pid) < 1.1 * before + 5
    children = renderers(server)
    assert sum(map(resident_mib, children)) < 256
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert not any(map(is_alive, children))


@contextmanager
def hanging_request(server: RunningServer) -> Iterator[Future[httpx.Response]]:
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(post, server, CHAT)
        time.sleep(2)  # long enough for the request to arrive
        assert not hanging.done()
        yield hanging


def test_sigterm_ends_a_server_whose_template_hangs(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = with_template(start_server, tmp_path, ENDLESS, 300.0)
    pid = until_one_renders(server)
    with hanging_request(server) as hanging:
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        reply = hanging.result()
    assert reply.status_code == 503
    assert "shutting down" in reply.json()["error"]["message"]
    assert not is_alive(pid)


def test_a_renderer_that_is_killed_or_stopped_is_replaced(server: RunningServer) -> None:
    post(server, CHAT).raise_for_status()
    for _ in range(3):
        for pid in renderers(server):
            os.kill(pid, signal.SIGKILL)
        server.until(lambda: not renderers(server))
        post(server, CHAT).raise_for_status()
    os.kill(until_one_renders(server), signal.SIGSTOP)
    begin = time.monotonic()
    reply = post(server, CHAT)
    assert time.monotonic() - begin < _PROMPTLY_S
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
    assert "its process was stopped by a signal" in reply.json()["error"]["message"]
    post(server, CHAT).raise_for_status()


def test_a_renderer_that_is_killed_costs_its_request(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = with_template(start_server, tmp_path, ENDLESS, 300.0)
    pid = until_one_renders(server)
    with hanging_request(server) as hanging:
        os.kill(pid, signal.SIGKILL)
        reply = hanging.result()
    assert reply.status_code == 500
    assert "its process was ended by signal 9" in reply.json()["error"]["message"]


def test_no_renderer_outlives_its_server(start_server: StartServer) -> None:
    server = start_server()
    pid = until_one_renders(server)
    server.signal(signal.SIGKILL)
    server.process.wait()
    server.until(lambda: not is_alive(pid))


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def messages() -> dict[str, dict[str, Any]]:
    """Made when they are needed: they are large."""
    return {
        "long": {"messages": [_user("x" * 15_000_000)]},
        "long lines": {"messages": [_user("\n" * 7_000_000)]},
        "wide characters": {"messages": [_user("\U0001f600" * 1_000_000)]},
        "null characters": {"messages": [_user("\0" * 2_000_000)]},
        "many": {"messages": [_user("x")] * 4096},
        "too many": {"messages": [_user("x")] * 4097},
        "many and long": {"messages": [_user("x" * 3000)] * 4096},
        "turns": {"messages": [_user("x"), {"role": "assistant", "content": "y"}] * 2048},
        "roles": {"messages": [{"role": "r" * 64, "content": "x"}] * 4096},
        "parts": {"messages": [_user([{"type": "text", "text": "x"}] * 200_000)]},
        "reasoning": {"messages": [{"role": "assistant", "content": "</think>" * 500_000}] * 2},
        "thoughts": {
            "messages": [{"role": "assistant", "content": "<think>" * 1_000_000}, _user("x")]
        },
        "tool calls": {
            "messages": [
                {
                    "role": "assistant", "content": "",
                    "tool_calls": [{"function": {"name": "f", "arguments": "[" * 100_000}}] * 100,
                },
                _user("x"),
            ]
        },
        "tools": {
            "messages": [_user("x")],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}] * 50_000,
        },
        "tool with much inside": {
            "messages": [_user("x")],
            "tools": [
                {
                    "type": "function",
                    "function": {"name": "f", "parameters": {str(n): [n] for n in range(300_000)}},
                }
            ],
        },
        "documents": {"messages": [_user("x")], "documents": [{"text": "x" * 100}] * 50_000},
        "deep": {"messages": [_user("x")], "chat_template_kwargs": {"a": _nested(900)}},
        "deeper than allowed": {
            "messages": [_user("x")], "chat_template_kwargs": {"a": _nested(70)},
        },
        "wide": {"messages": [_user("x")], "chat_template_kwargs": {"a": [[]] * 3_000_000}},
        "names": {
            "messages": [_user("x")],
            "chat_template_kwargs": {f"name{n}": n for n in range(300_000)},
        },
        "odd names": {
            "messages": [_user("x")], "chat_template_kwargs": {"": 1, "a b": 2, "__x": 3},
        },
        "built-in names": {
            "messages": [_user("x")],
            "chat_template_kwargs": {"range": 1, "namespace": 2, "raise_exception": 3, "loop": 4},
        },
        "numbers": {"messages": [_user("x")], "chat_template_kwargs": {"a": int("9" * 4000)}},
        "braces": {"messages": [_user("{{ 7 * 7 }}{% for i in range(99999) %}" * 1000)]},
        "continued": {
            "messages": [_user("x"), {"role": "assistant", "content": "y" * 1_000_000}],
            "add_generation_prompt": False, "continue_final_message": True,
        },
    }  # fmt: skip


def test_hostile_messages_harm_nobody(server: RunningServer) -> None:
    post(server, CHAT).raise_for_status()
    for name, body in messages().items():
        reply = healthy_during(server, lambda body=body: post(server, {**body, "max_tokens": 1}))
        assert reply.status_code in (200, 400), (name, reply.text[:300])
    assert post(server, CHAT).raise_for_status().json()["usage"]["completion_tokens"] == 2
    assert sum(map(resident_mib, renderers(server))) < 256
