"""Conversations for a simulated fleet, made from random numbers or read from a file of requests."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from quire.bench.timed_trace import TraceFormat, read_trace
from quire.placement.prefix_index import BlockKeys
from quire.protocol import CacheScope

VOCABULARY = 32_000


@dataclass
class Conversation:
    """Turns: each prompt repeats all before it."""

    name: str
    starts_at: float
    text: list[int]
    """All tokens, to the end of the last reply."""
    turns: list[tuple[int, int]]
    """Lengths of the text up to the end of each prompt, and of its reply."""
    pauses: list[float]
    """Seconds between the end of a reply and the next prompt."""
    repeats_replies: bool = True
    """Whether the replies are those that the next prompts repeat."""
    scope: CacheScope = field(default_factory=CacheScope)
    adapter: str = ""
    keys: list[bytes] = field(default_factory=list)

    def keys_of(self, first: int, end: int, block_size: int) -> list[bytes]:
        """Keys of the full blocks whose last token is from `first` to `end - 1`."""
        if not self.keys:
            every = BlockKeys(block_size, self.scope, (), b"", self.adapter)
            self.keys = every.extend(self.text)
        return self.keys[first // block_size : end // block_size]


@dataclass(frozen=True)
class Shape:
    """Averages of conversations."""

    num_turns: float = 5.0
    first_tokens: int = 120
    turn_tokens: int = 60
    reply_tokens: int = 60
    pause_s: float = 2.0
    num_systems: int = 32
    system_tokens: tuple[int, int] = (64, 800)
    num_adapters: int = 4
    num_tenants: int = 4
    special_share: float = 0.25
    """Share of the conversations that have an adapter, and of those that have a salt."""

    @property
    def tokens_of_turn(self) -> tuple[float, float]:
        """Tokens of a prompt that are new, and of its reply."""
        new = (self.first_tokens - self.turn_tokens) / self.num_turns + self.turn_tokens
        return new, self.reply_tokens


def conversations(shape: Shape, count: int, per_second: float, seed: int) -> list[Conversation]:
    """In order of time."""
    rng = random.Random(seed)
    systems = [_tokens(rng, rng.randint(*shape.system_tokens)) for _ in range(shape.num_systems)]
    weights = [1 / (1 + rank) for rank in range(shape.num_systems)]
    made, now = list[Conversation](), 0.0
    for number in range(count):
        now += rng.expovariate(per_second)
        text, turns, pauses = list(rng.choices(systems, weights)[0]), [], []
        size = shape.first_tokens
        while not turns or rng.random() < 1 - 1 / shape.num_turns:
            text += _tokens(rng, _around(rng, size))
            reply = _around(rng, shape.reply_tokens)
            turns.append((len(text), reply))
            text += _tokens(rng, reply)
            pauses.append(rng.expovariate(1 / shape.pause_s))
            size = shape.turn_tokens
        has_adapter, has_salt = (rng.random() < shape.special_share for _ in range(2))
        adapter = f"adapter {rng.randrange(shape.num_adapters)}" if has_adapter else ""
        scope = CacheScope(f"tenant {rng.randrange(shape.num_tenants)}" if has_salt else None)
        made.append(Conversation(str(number), now, text, turns, pauses, True, scope, adapter))
    return made


def of_file(path: Path, times_faster: float = 1.0, most: int = 10**9) -> list[Conversation]:
    """Requests of a trace in the format of Mooncake's, each as a conversation of one turn."""
    form = TraceFormat(512, 1e-3, "timestamp", "input_length", "output_length", "hash_ids")
    vocabulary: Any = SimpleNamespace(vocab_size=VOCABULARY, special_token_ids=())
    made = list[Conversation]()
    for number, one in enumerate(read_trace(path.read_text(), path, form, vocabulary, most)):
        reply = _tokens(random.Random(number), one.output_len)
        turn = (len(one.token_ids), one.output_len)
        at_s = one.at_s / times_faster
        made.append(Conversation(str(number), at_s, one.token_ids + reply, [turn], [0.0]))
    return made


def _around(rng: random.Random, mean: float) -> int:
    """A length; most are near the mean and some are several times as long."""
    return max(1, int(rng.lognormvariate(0, 0.8) * mean / 1.377))


def _tokens(rng: random.Random, count: int) -> list[int]:
    return list(memoryview(rng.randbytes(2 * count)).cast("H"))
