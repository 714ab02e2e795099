"""The attacks: each takes the port of a server and how long to go on, and returns what became of
its requests, by status."""

from __future__ import annotations

import random
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tools.attack_server.client import ask, connect, crowd, during, head, many, post, status

Attack = Callable[[int, float], Counter[Any]]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LONG = {"prompt": "abc", "max_tokens": 1500, "ignore_eos": True, "temperature": 1.0}
CHUNKED = "Transfer-Encoding: chunked\r\n\r\n"
_MIB = 1 << 20


def words(num_chars: int) -> str:
    """A text of so many characters."""
    return ("plain words, some of them longer than others; " * (num_chars // 46 + 1))[:num_chars]


def calm(_: int, seconds: float) -> Counter[Any]:
    """Nothing at all."""
    time.sleep(seconds)
    return Counter()


def slow_readers(port: int, seconds: float) -> Counter[Any]:
    """200 clients ask for much, streamed, and read none of it."""
    body = {**LONG, "n": 16, "logprobs": 20, "stream": True}
    with many(port, 200, post(COMPLETIONS, body), receive_bytes=4096) as clients:
        time.sleep(seconds)
        return Counter(status(client) for client in clients)


def fast_readers(port: int, seconds: float) -> Counter[Any]:
    """200 clients read their streams as they come."""
    request = post(COMPLETIONS, {**LONG, "logprobs": 20, "stream": True})
    end = time.monotonic() + seconds

    def visit(_: int) -> str:
        with connect(port) as client:
            client.sendall(request)
            found = status(client)
            while time.monotonic() < end and client.recv(1 << 16):
                pass
            return found

    return crowd(200, visit)


def leavers(port: int, seconds: float) -> Counter[Any]:
    """64 clients at a time leave at random moments, some within their request."""
    choose, end = random.Random(5), time.monotonic() + seconds

    def visit(_: int) -> str:
        while time.monotonic() < end:
            wait_s, stream = choose.random() * 0.2, choose.random() < 0.5
            request = post(COMPLETIONS, {**LONG, "n": 4, "stream": stream})
            with connect(port) as client:
                client.sendall(request if wait_s > 0.02 else request[: len(request) // 2])
                time.sleep(wait_s)
        return "left"

    return crowd(64, visit)


def overload(port: int, seconds: float) -> Counter[Any]:
    """40 clients, each of which asks again at once."""
    request = post(COMPLETIONS, {"prompt": "abc", "max_tokens": 60, "ignore_eos": True, "n": 8})
    found = crowd(40, lambda _: tuple(during(seconds, lambda: ask(port, request)).elements()))
    return Counter(one for visits, times in found.items() for one in visits * times)


def connections(first: bytes) -> Attack:
    """10,000 connections that have sent this, and send nothing more."""

    def attack(port: int, seconds: float) -> Counter[Any]:
        with many(port, 10_000, first) as clients:
            time.sleep(seconds)
            return Counter({"open": len(clients)})

    return attack


def dripping(first: bytes, unit: bytes, count: int = 300) -> Attack:
    """So many connections that send this, and then a unit again and again without an end."""

    def attack(port: int, seconds: float) -> Counter[Any]:
        with many(port, count, first) as clients:

            def drip() -> None:
                for client in clients:
                    with suppress(OSError):
                        client.sendall(unit)

            during(seconds, drip, pause_s=0.01)
            for client in clients:
                client.settimeout(0.01)
            return Counter(status(client) for client in clients)

    return attack


def endless(first: bytes, unit: bytes) -> Attack:
    """8 clients that send this and then units as fast as they can, again and again."""

    def attack(port: int, seconds: float) -> Counter[Any]:
        many_units, end = unit * (65536 // len(unit)), time.monotonic() + seconds

        def flood(_: int) -> str:
            while time.monotonic() < end:
                with suppress(OSError), connect(port) as client:
                    client.sendall(first)
                    while time.monotonic() < end:
                        client.sendall(many_units)
            return "flooded"

        return crowd(8, flood)

    return attack


def requests(path: str, make: Callable[[], object], num_clients: int = 4) -> Attack:
    """So many clients send one request again and again."""

    def attack(port: int, seconds: float) -> Counter[Any]:
        request = post(path, make())
        found = crowd(
            num_clients, lambda _: tuple(during(seconds, lambda: ask(port, request)).elements())
        )
        return Counter(one for visits, times in found.items() for one in visits * times)

    return attack


def half_handshakes(port: int, seconds: float) -> Counter[Any]:
    """Clients that begin TLS handshakes and go no further."""
    hello = bytes.fromhex("16030100f8010000f40303") + bytes(100)

    def begin() -> str:
        with many(port, 300, hello):
            time.sleep(0.2)
        return "left"

    return during(seconds, begin)


def reconnecting(port: int, seconds: float) -> Counter[Any]:
    """Clients that connect and leave at once."""
    end = time.monotonic() + seconds

    def visit(_: int) -> str:
        while time.monotonic() < end:
            with suppress(OSError), connect(port) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        return "left"

    return crowd(8, visit)


def _messages(content: object, **fields: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 4, **fields}


PLAIN: dict[str, Attack] = {
    "calm": calm,
    "200 slow readers, n=16, logprobs=20": slow_readers,
    "200 fast readers, logprobs=20": fast_readers,
    "leavers at random moments": leavers,
    "overload by 40": overload,
    "10,000 idle": connections(b""),
    "10,000 half requests": connections(b"GET /version HTTP/1.1\r\nA:"),
    "10,000 used": connections(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "reconnecting": reconnecting,
    "dripping bodies": dripping(head("/tokenize", CHUNKED), b"1\r\na\r\n"),
    "endless trailers": endless(head("/tokenize", CHUNKED) + b"0\r\n", b"A: b\r\n"),
    "endless chunks of a byte": endless(head("/tokenize", CHUNKED), b"1\r\n \r\n"),
    "endless heads": endless(b"GET / HTTP/1.1\r\n", b"A: b\r\n"),
    "pipelined": endless(b"", b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "chats of 9 kB": requests(CHAT, lambda: _messages(words(9000)), 16),
    "tokenize 9 kB": requests("/tokenize", lambda: {"prompt": words(9000)}, 32),
    "tokenize 1 MB": requests("/tokenize", lambda: {"prompt": words(_MIB)}),
    "tokenize 1 MB, strings": requests(
        "/tokenize", lambda: {"prompt": words(_MIB), "return_token_strs": True}
    ),
    "tokenize 14 MB": requests("/tokenize", lambda: {"prompt": words(14 * _MIB)}),
    "tokenize a word of 1 MB": requests("/tokenize", lambda: {"prompt": "a" * _MIB}),
    "detokenize 7 million": requests(
        "/detokenize", lambda: b'{"tokens":[' + b"1," * 7_000_000 + b"1]}"
    ),
    "prompt of 14 MB": requests(COMPLETIONS, lambda: {"prompt": words(14 * _MIB)}),
    "prompt of 7 million tokens": requests(
        COMPLETIONS, lambda: b'{"prompt":[' + b"1," * 7_000_000 + b"1]}"
    ),
    "5 million bad_words": requests(
        COMPLETIONS, lambda: b'{"prompt":"a","bad_words":[' + b'"",' * 5_000_000 + b'""]}'
    ),
    "deep JSON": requests(
        COMPLETIONS, lambda: b'{"prompt":"a","prompt_embeds":' + b"[" * 7_000_000 + b"}"
    ),
    "seed of 14 MB": requests(
        COMPLETIONS, lambda: b'{"prompt":"a","seed":' + b"9" * 14_000_000 + b"}"
    ),
    "300,000 messages": requests(
        CHAT, lambda: {"messages": [{"role": "user", "content": "x"}] * 300_000}
    ),
    "4,096 messages": requests(
        CHAT, lambda: {"messages": [{"role": "user", "content": words(3000)}] * 4096}
    ),
    "chat_template_kwargs of 14 MB": requests(
        CHAT, lambda: _messages("x", chat_template_kwargs={"a": [{"a": 1, "b": []}] * 700_000})
    ),
    "1,000 prompts": requests(
        COMPLETIONS, lambda: {"prompt": [words(2000)] * 1000, "max_tokens": 1}, 1
    ),
    "n=128, logprobs=20": requests(
        COMPLETIONS, lambda: {**LONG, "n": 128, "logprobs": 20, "max_tokens": 64}
    ),
    "n=128, streamed": requests(COMPLETIONS, lambda: {**LONG, "n": 128, "stream": True}),
}
TLS: dict[str, Attack] = {
    "TLS, calm": calm,
    "TLS half handshakes": half_handshakes,
    "TLS, a byte at a time": dripping(bytes.fromhex("16030140"), b"\0"),
}
TEMPLATE: dict[str, Attack] = {
    "hostile template": requests(CHAT, lambda: _messages("x"), 8),
}
HOSTILE_TEMPLATE = (
    "{% set ns = namespace(v=[1]) %}{% for i in range(60) %}{% set ns.v = [ns.v, ns.v] %}"
    "{% endfor %}{{ ns.v }}"
)
