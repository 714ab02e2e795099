"""Attacks by what requests ask for, such as texts, grammars and streams; and by clients without a
key."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

from tools.attack_server.attacks import CHAT, CHUNKED, COMPLETIONS, Attack, dripping, requests
from tools.attack_server.client import ask, connect, crowd, during, head, many, post, status

_MIB = 1 << 20
_VERSION = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"


def storm(make: Callable[[int], bytes], num_clients: int = 8) -> Attack:
    """So many clients, each of whose requests differs from all others."""

    def attack(port: int, seconds: float) -> Counter[Any]:
        numbers = count()

        def visit(_: int) -> tuple[str, ...]:
            return tuple(during(seconds, lambda: ask(port, make(next(numbers)))).elements())

        return Counter(
            one for each, times in crowd(num_clients, visit).items() for one in each * times
        )

    return attack


def unread_streams(port: int, seconds: float) -> Counter[Any]:
    """2,000 clients ask for a short stream each, and read nothing."""
    body = {"prompt": "abc", "max_tokens": 5, "stream": True}
    with many(port, 2000, post(COMPLETIONS, body), receive_bytes=4096) as clients:
        time.sleep(seconds)
        return Counter(status(client) for client in clients)


def mixed_pipelines(port: int, seconds: float) -> Counter[Any]:
    """8 clients that ask for streams and versions in turn, without waiting for any reply."""
    stream = post(COMPLETIONS, {"prompt": "abc", "max_tokens": 20, "stream": True})
    data, end = (stream + _VERSION) * 50, time.monotonic() + seconds

    def visit(_: int) -> str:
        while time.monotonic() < end:
            with suppress(OSError), connect(port) as client:
                client.settimeout(0.2)
                for _ in range(20):
                    client.sendall(data)
                    client.recv(1 << 16)
        return "left"

    return crowd(8, visit)


def _completion(**fields: object) -> bytes:
    return post(COMPLETIONS, {"prompt": "abc", "max_tokens": 4, **fields})


def _distinct_lists(name: str, size: int) -> Attack:
    return storm(lambda number: _completion(**{name: [f"w{number} {i}" for i in range(size)]}), 4)


def _text(unit: str) -> Attack:
    """A text of a MiB in which a unit repeats, to be tokenized."""
    return requests("/tokenize", lambda: {"prompt": unit * (_MIB // len(unit.encode()))})


def _schema(number: int) -> dict[str, Any]:
    names = [f"field{number}_{i}" for i in range(200)]
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}}


MORE: dict[str, Attack] = {
    "1,000 clients, chunks of a byte": dripping(head("/tokenize", CHUNKED), b"1\r\na\r\n", 1000),
    "pipelined streams and versions": mixed_pipelines,
    "2,000 short streams, unread": unread_streams,
    "websocket upgrades": storm(
        lambda _: (
            b"GET /v1/completions HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAA\r\n\r\n"
        )
    ),
    "responses in the background": storm(
        lambda number: post(
            "/v1/responses", {"input": f"x{number}", "background": True, "max_output_tokens": 30}
        ),
        16,
    ),
    "batches of 4,000 chats": storm(
        lambda number: post(
            CHAT + "/batch",
            {"messages": [[{"role": "user", "content": f"{number}"}]] * 4000, "max_tokens": 1},
        ),
        4,
    ),
    "batches of 100 chats": storm(
        lambda number: post(
            CHAT + "/batch",
            {"messages": [[{"role": "user", "content": f"{number}"}]] * 100, "max_tokens": 1},
        ),
        4,
    ),
    "an emoji, a MiB": _text("\U0001f44d"),
    "joined emoji, a MiB": _text("\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d"),
    "zero-width joiners, a MiB": _text("\u200d"),
    "combining marks, a MiB": _text("\u0301"),
    "spaces, a MiB": _text(" "),
    "regular expressions": storm(
        lambda number: _completion(
            structured_outputs={"regex": f"(a+)+(b{{1,200}}c){{1,50}}{number}"}
        )
    ),
    "schemas": storm(lambda number: _completion(structured_outputs={"json": _schema(number)})),
    "choices of 1,000": storm(
        lambda number: _completion(
            structured_outputs={"choice": [f"{number} of {i}" for i in range(1000)]}
        )
    ),
    "20,000 stop strings": _distinct_lists("stop", 20_000),
    "20,000 bad_words": _distinct_lists("bad_words", 20_000),
    "30,000 logit_bias": requests(
        COMPLETIONS,
        lambda: {"prompt": "a", "max_tokens": 4, "logit_bias": {str(i): 1 for i in range(30_000)}},
    ),
    "400 stop_token_ids, all biased": storm(
        lambda number: _completion(
            stop_token_ids=list(range(number % 50, 400)), logit_bias={str(i): 1 for i in range(400)}
        )
    ),
}
KEYED: dict[str, Attack] = {
    "/kv/clear without a key": requests("/kv/clear", lambda: b"", 16),
    "/kv/pin of a MiB without a key": requests(
        "/kv/pin", lambda: {"prompt": "a " * (_MIB // 2)}, 16
    ),
    "completions without a key": requests(COMPLETIONS, lambda: {"prompt": "a"}, 16),
}
