"""A real server under requests that ask for much: it answers others meanwhile, refuses by name, and
keeps no memory of them. Times are printed (pytest -s), not asserted: a busy machine has its own.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from .conftest import RunningServer, StartServer, start_demo
from .test_crowds import canary, connect, post, resident_mib

MIB = 1 << 20
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def words(num_chars: int) -> str:
    return ("plain words, some of them longer than others; " * (num_chars // 46 + 1))[:num_chars]


def dumped(body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode()


ATTACKS: list[tuple[str, Callable[[], bytes], int, str | None]] = [
    ("/tokenize", lambda: dumped({"prompt": words(14 * MIB)}), 400, "prompt"),
    ("/tokenize", lambda: dumped({"prompt": words(MIB)}), 200, None),
    ("/tokenize", lambda: dumped({"prompt": words(MIB), "return_token_strs": True}), 200, None),
    ("/tokenize", lambda: dumped({"prompt": "a" * MIB}), 200, None),
    ("/detokenize", lambda: b'{"tokens":[' + b"1," * 7_000_000 + b"1]}", 400, "tokens"),
    (COMPLETIONS, lambda: dumped({"prompt": words(14 * MIB), "max_tokens": 1}), 400, "prompt"),
    (COMPLETIONS, lambda: dumped({
        "prompt": words(9000), "n": 128, "echo": True, "logprobs": 20, "max_tokens": 1,
        "temperature": 1.0}), 400, "logprobs"),
    (COMPLETIONS, lambda: dumped({
        "prompt": [words(40)] * 1000, "n": 128, "max_tokens": 1}), 400, "n"),
    (COMPLETIONS, lambda: b'{"prompt":[' + b"1," * 7_000_000 + b"1]}", 400,
     "input_tokens"),
    (COMPLETIONS, lambda: b'{"prompt":"a","bad_words":[' + b'"",' * 5_000_000 + b'""]}', 400,
     "bad_words"),
    (COMPLETIONS, lambda: b'{"prompt":"a","prompt_embeds":' + b"[" * 7_000_000 + b"]" * 7_000_000
     + b"}", 400, "prompt_embeds"),
    (COMPLETIONS, lambda: b'{"prompt":"a","seed":' + b"9" * 14_000_000 + b"}", 400, "seed"),
    (CHAT, lambda: dumped({"messages": [{"role": "user", "content": "x"}] * 300_000}), 400,
     "messages"),
    (CHAT, lambda: dumped({"messages": [{"role": "user", "content": "x", "unknown": 1}] * 15_000}),
     400, "messages"),
    (CHAT, lambda: dumped({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs":
                           {"a": [{"a": 1, "b": []}] * 700_000}}), 400, "chat_template_kwargs"),
]  # fmt: skip


class Visitor:
    """Asks for `/health` all the time."""

    def __init__(self, server: RunningServer) -> None:
        self.statuses: list[int] = []
        self.longest_s = 0.0
        self._client = server.client()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Visitor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        while not self._is_over.wait(0.01):
            begin = time.monotonic()
            self.statuses.append(self._client.get("/health").status_code)
            self.longest_s = max(self.longest_s, time.monotonic() - begin)


def attack(server: RunningServer) -> None:
    """Each attack once, with a visitor."""
    for path, make, status, name in ATTACKS:
        data = make()
        with server.client(headers={"content-type": "application/json"}) as client:
            client.timeout = httpx.Timeout(120)
            with Visitor(server) as visitor:
                begin = time.monotonic()
                reply = client.post(path, content=data)
                seconds = time.monotonic() - begin
        print(f"  {path} {len(data):>9} bytes: {reply.status_code} in {seconds:.2f} s, "
              f"/health within {1000 * visitor.longest_s:.0f} ms")  # fmt: skip
        assert reply.status_code == status, reply.text[:500]
        if name is not None:
            assert reply.json()["error"]["param"] == name
        assert set(visitor.statuses) <= {200}


@pytest.mark.long
def test_others_are_answered_and_no_memory_is_kept(start_server: StartServer) -> None:
    server = start_demo(start_server, 512)
    text = canary(server)
    print()
    attack(server)  # the first large use brings in what stays: NumPy, threads, caches
    server.until_idle()
    time.sleep(2)  # memory goes back half a second after the last reply
    first = resident_mib(server)
    attack(server)
    server.until(lambda: resident_mib(server) < 1.1 * first + 8, 20)
    assert canary(server) == text


def test_what_nobody_waits_for_stops(start_server: StartServer) -> None:
    """Large requests whose clients leave make no room for others only when they are done: they
    are done at once."""
    server = start_demo(start_server, 512)
    request = post({"prompt": words(MIB)}, "/tokenize")
    for _ in range(3):
        clients = [connect(server) for _ in range(12)]
        for client in clients:
            client.sendall(request)
        for client in clients:
            client.close()
    with server.client() as client:

        def is_served() -> bool:
            reply = client.post("/tokenize", json={"prompt": words(MIB // 2)}, timeout=60)
            return reply.status_code == 200

        server.until(is_served, 60)


@pytest.mark.long
def test_a_thousand_prompts_and_others_beside_them(start_server: StartServer) -> None:
    server = start_demo(start_server, 512)
    body = {"prompt": [words(2000)] * 1000, "max_tokens": 1}
    with server.client() as client, Visitor(server) as visitor:
        client.timeout = httpx.Timeout(600)
        reply = client.post(COMPLETIONS, json=body)
    assert len(reply.json()["choices"]) == 1000
    assert set(visitor.statuses) <= {200}
    print(f"\n/health within {1000 * visitor.longest_s:.0f} ms")
