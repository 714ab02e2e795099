"""Attacks on the routes of tokens, of the KV store, and of what two engines share."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

from tools.attack_server.attacks import COMPLETIONS, Attack, requests, words
from tools.attack_server.client import ask, connect, crowd, during, post
from tools.attack_server.more_attacks import storm

GENERATE, ABORT = "/inference/v1/generate", "/inference/v1/abort_requests"
_FEW = {"max_tokens": 4}
_MIB = 1 << 20


def _tokens(fields: bytes, sampling: bytes = b'"max_tokens":4') -> bytes:
    return b'{"token_ids":[5,6,7],"sampling_params":{%s}%s}' % (sampling, fields)


def _of(fields: bytes, sampling: bytes = b'"max_tokens":4') -> Attack:
    return requests(GENERATE, lambda: _tokens(fields, sampling))


def aborted_streams(port: int, seconds: float) -> Counter[Any]:
    """16 clients begin streams of one id; 4 abort this id and thousands of unknown ids."""
    body = {"token_ids": [5, 6], "request_id": "one", "stream": True,
            "sampling_params": {"max_tokens": 1500, "ignore_eos": True}}  # fmt: skip
    begin = post(GENERATE, body)
    abort = post(ABORT, {"request_ids": ["one", *(f"no{i}" for i in range(4000))]})
    end = time.monotonic() + seconds

    def visit(number: int) -> tuple[str, ...]:
        if number < 4:
            return tuple(during(seconds, lambda: ask(port, abort), 0.02).elements())
        return tuple(during(end - time.monotonic(), lambda: ask(port, begin)).elements())

    found = crowd(20, visit)
    return Counter(one for visits, times in found.items() for one in visits * times)


def leaving_hand_offs(port: int, seconds: float) -> Counter[Any]:
    """32 clients wait for K/V that no engine stores, and leave at random moments."""
    choose, end = random.Random(3), time.monotonic() + seconds

    def visit(number: int) -> str:
        while time.monotonic() < end:
            with connect(port) as client:
                client.sendall(_awaiting(choose.randrange(1 << 30) + number))
                time.sleep(choose.random() * 0.1)
        return "left"

    return crowd(32, visit)


def _awaiting(number: int) -> bytes:
    """A prompt of its own, whose K/V another engine is said to store."""
    transfer = {"do_remote_prefill": True, "do_remote_decode": False}
    body = {"prompt": f"{number} " + words(1500), "kv_transfer_params": transfer, **_FEW}
    return post(COMPLETIONS, body)


def _handing_off(number: int) -> bytes:
    transfer = {"do_remote_decode": True}
    return post(
        COMPLETIONS,
        {"prompt": f"{number} " + words(1500), "kv_transfer_params": transfer, "max_tokens": 1},
    )


TOKENS: dict[str, Attack] = {
    "tokens: 7 million ids": requests(
        GENERATE,
        lambda: b'{"token_ids":[' + b"1," * 7_000_000 + b'1],"sampling_params":{"max_tokens":4}}',
    ),
    "tokens: 3 million stop ids": _of(
        b"", b'"max_tokens":4,"stop_token_ids":[' + b"1," * 3_000_000 + b"1]"
    ),
    "tokens: features of 14 MB": _of(b',"features":{"a":[' + b'{"a":1},' * 1_700_000 + b"1]}"),
    "tokens: content_parts of 14 MB": _of(b',"content_parts":[' + b"{}," * 4_600_000 + b"{}]"),
    "tokens: deep features": _of(b',"features":' + b"[" * 7_000_000),
    "tokens: logprobs of 128": requests(
        GENERATE,
        lambda: {
            "token_ids": [5, 6],
            "sampling_params": {"n": 128, "max_tokens": 64, "ignore_eos": True, "logprobs": 20},
            "output_mode": "text",
        },
    ),
    "tokens: streams of one id, aborted": aborted_streams,
    "hand-offs that are not taken": storm(_handing_off, 16),
    "hand-offs that are not made": storm(_awaiting, 32),
    "hand-offs, waiting clients leave": leaving_hand_offs,
    "hand-off of 14 MB": requests(
        COMPLETIONS,
        lambda: (
            b'{"prompt":"a","kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":['
            + b"[1]," * 3_500_000
            + b"[1]]}}"
        ),
    ),
    "/kv/pin of a MiB": storm(
        lambda number: post("/kv/pin", {"prompt": f"{number} " + words(_MIB)}), 4
    ),
    "/kv/pin of 9 kB": storm(
        lambda number: post("/kv/pin", {"prompt": f"{number} " + words(9000)}), 16
    ),
    "/kv/clear by 16": requests("/kv/clear", lambda: b"", 16),
}
