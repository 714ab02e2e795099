"""Damages files as attackers, broken downloads and editors do; seeded: a finding repeats."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from quire.errors import CheckpointError

STRINGS: list[str] = [
    "", " ", "a", "\0", "\ud800", "\udfff!", "../../etc/passwd", "/dev/zero", "x" * 5000, "é" * 9,
    "\U0001f600", "\u2581", "##", "{{ 1/0 }}", "{% for", "%s%n", "null", "1e999", "-1",
    "model.safetensors",
    "LlamaForCausalLM", "Qwen3ForCausalLM", "GPT2LMHeadModel", "bfloat16", "F32", "I64", "BPE",
    "Unigram", "WordPiece", "ByteLevel", "NFKC", "Sequence", "(a+)+$", "[", "<|end|>",
]  # fmt: skip
NUMBERS: list[float] = [
    0, 1, -1, 2, 3, 7, 16, 255, 256, 288, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1,
    2**63, 2**64, -(2**31), -(2**63), 10**30, 0.0, -0.0, 0.5, 1e-320, 1e308, -1e308, 1e400, -1e400,
]  # fmt: skip


def some_value(rng: random.Random, depth: int = 0) -> Any:
    """Any JSON value, small ones mostly."""
    kinds: list[Callable[[], Any]] = [
        lambda: rng.choice(STRINGS),
        lambda: rng.choice(NUMBERS),
        lambda: rng.choice([None, True, False, float("nan")]),
        lambda: [],
        lambda: {},
    ]
    if depth < 3:
        kinds += [
            lambda: [some_value(rng, depth + 1) for _ in range(rng.randrange(4))],
            lambda: {
                rng.choice(STRINGS): some_value(rng, depth + 1) for _ in range(rng.randrange(4))
            },
        ]
    return rng.choice(kinds)()


def _like(rng: random.Random, value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return rng.choice([*NUMBERS, value + 1, value - 1, -value, value * 2])
    if isinstance(value, str):
        return rng.choice([*STRINGS, value + rng.choice(STRINGS), value[:-1], value.upper()])
    if isinstance(value, list):
        return rng.choice([[], value + value, value[::-1], value[:1], [*value, some_value(rng)]])
    if isinstance(value, dict):
        kept = {key: child for key, child in value.items() if rng.random() < 0.7}
        return rng.choice([{}, {**value, rng.choice(STRINGS): some_value(rng)}, kept])
    return some_value(rng)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value, except the second and further ones of long tables of values."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for key, child in items[:40]:
        yield (*path, key)
        yield from _places(child, (*path, key))


def damaged_json(rng: random.Random, value: Any) -> Any:
    """A copy of a JSON value with one to three places changed, removed, renamed or added."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        places = list(_places(value))
        if not places:
            return some_value(rng)
        *way, key = rng.choice(places)
        holder = value
        for step in way:
            holder = holder[step]
        action = rng.random()
        if action < 0.5:
            holder[key] = _like(rng, holder[key])
        elif action < 0.75:
            holder[key] = some_value(rng)
        elif action < 0.85 or not isinstance(holder, dict):
            del holder[key]
        elif action < 0.93:
            holder[rng.choice(STRINGS)] = holder.pop(key)
        else:
            holder[rng.choice(STRINGS)] = some_value(rng)
    return value


def damaged_bytes(rng: random.Random, data: bytes) -> bytes:
    """A copy with one to four places overwritten, cut out, inserted or repeated."""
    damaged = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4])):
        place = rng.randrange(len(damaged) + 1)
        action = rng.random()
        if action < 0.4 and place < len(damaged):
            damaged[place] = rng.randrange(256)
        elif action < 0.6:
            del damaged[place : place + rng.choice([1, 8, 100, 10**9])]
        elif action < 0.85:
            damaged[place:place] = rng.choice(_INSERTED)
        else:
            other = rng.randrange(len(damaged) + 1)
            damaged[place:place] = damaged[min(place, other) : max(place, other)][:4000]
    return bytes(damaged)


_INSERTED = [
    b"9" * 400, b"9" * 5000, b"[" * 3000, b'{"a":' * 3000, b'"', b"\\ud800", b"\\u0000", b"\xff",
    b"\xef\xbb\xbf",
    b"e99999", b"null", b"NaN", b"-Infinity", b"\0" * 64, b",", b"}",
]  # fmt: skip


def check_reading(open_store: Callable[[Path], Any], path: Path, most_bytes: int) -> None:
    """Only a CheckpointError may come out of a damaged file of weights, and no allocation of more
    bytes."""
    tracemalloc.start()
    try:
        store = open_store(path)
        for name in list(store.names()):
            with suppress(CheckpointError):
                store.get(name)
                store.release(name)
    except CheckpointError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < most_bytes


def damaged_file(rng: random.Random, data: bytes) -> bytes:
    """A JSON file, damaged as a value or as bytes."""
    if rng.random() < 0.75:
        return json.dumps(damaged_json(rng, json.loads(data))).encode()
    return damaged_bytes(rng, data)
