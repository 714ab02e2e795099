"""Random schemas of numbers: each text that the server writes has to be valid, as `jsonschema` says
with exact decimals."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from typing import Any

from tests.fakes.number_schemas import is_valid, number_schema, within
from tools.attack_server.attacks import COMPLETIONS, Attack
from tools.attack_server.client import crowd, reply


def numbers(port: int, seconds: float) -> Counter[Any]:
    """4 clients, each with one schema after the other."""
    seed = random.SystemRandom().randrange(1 << 32)
    end = time.monotonic() + seconds

    def visit(number: int) -> tuple[str, ...]:
        choose, found = random.Random(seed + number), Counter[str]()
        while time.monotonic() < end:
            found[_ask(port, choose)] += 1
        return tuple(found.elements())

    visits = crowd(4, visit)
    return Counter(one for found, times in visits.items() for one in found * times)


def _ask(port: int, choose: random.Random) -> str:
    schema = number_schema(choose)
    if choose.random() < 0.5:
        schema = within(choose, schema)
    body = {"prompt": "n", "max_tokens": 60, "structured_outputs": {"json": schema}}
    got = reply(port, COMPLETIONS, body)
    if "error" in got:
        return "refused"
    choice = got["choices"][0]
    if choice["finish_reason"] != "stop":
        return "cut"
    if is_valid(schema, choice["text"]):
        return "valid"
    print(f"not valid: {schema}: {choice['text']!r}", file=sys.stderr, flush=True)
    return "not valid"


NUMBERS: dict[str, Attack] = {"random schemas of numbers": numbers}
